"""Estimators with the conventions of scikit-learn."""

from rtbm.estimators.density.committee import RTBMDensityCV
from rtbm.estimators.density.estimator import RTBMDensity
from rtbm.estimators.features.classifier import RTBMClassifier
from rtbm.estimators.features.transformer import RTBMFeatures
from rtbm.estimators.networks.estimators import ThetaNetClassifier, ThetaNetRegressor

__all__ = ["RTBMClassifier", "RTBMDensity", "RTBMDensityCV", "RTBMFeatures", "ThetaNetClassifier", "ThetaNetRegressor"]
