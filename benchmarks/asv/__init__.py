"""Benchmarks for asv, the history of speeds."""
