"""Density estimation: single machines and mixtures, and committees of them."""

from rtbm.estimators.density.committee import RTBMDensityCV
from rtbm.estimators.density.estimator import RTBMDensity

__all__ = ["RTBMDensity", "RTBMDensityCV"]
