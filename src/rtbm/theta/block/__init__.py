"""Theta functions of one indecomposable matrix: its geometry, the cost of a sum, and the sum by several evaluators."""
