"""Samplers: lattice points, visible points by rejection, and annealed importance sampling."""
