"""Estimators with the conventions of scikit-learn."""

from rtbm.estimators.density import RTBMDensity

__all__ = ["RTBMDensity"]
