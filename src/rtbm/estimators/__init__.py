"""Estimators with the conventions of scikit-learn."""

from rtbm.estimators.density import RTBMDensity
from rtbm.estimators.networks import ThetaNetClassifier, ThetaNetRegressor

__all__ = ["RTBMDensity", "ThetaNetClassifier", "ThetaNetRegressor"]
