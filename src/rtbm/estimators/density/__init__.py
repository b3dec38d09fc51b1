"""Density estimation: single machines and mixtures, and committees of them."""
