"""Integrals over visible units: grids, probabilities of boxes, quantiles and expectations."""
