"""Estimators with the conventions of scikit-learn."""

from rtbm.estimators.classifier import RTBMClassifier
from rtbm.estimators.density import RTBMDensity
from rtbm.estimators.features import RTBMFeatures
from rtbm.estimators.networks import ThetaNetClassifier, ThetaNetRegressor

__all__ = ["RTBMClassifier", "RTBMDensity", "RTBMFeatures", "ThetaNetClassifier", "ThetaNetRegressor"]
