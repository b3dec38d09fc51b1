"""Comparisons with other methods on real tables."""
