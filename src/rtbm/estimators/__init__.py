"""Estimators with the conventions of scikit-learn."""

from rtbm.estimators.classifier import RTBMClassifier
from rtbm.estimators.density import RTBMDensity
from rtbm.estimators.density_cv import RTBMDensityCV
from rtbm.estimators.features import RTBMFeatures
from rtbm.estimators.networks import ThetaNetClassifier, ThetaNetRegressor

__all__ = ["RTBMClassifier", "RTBMDensity", "RTBMDensityCV", "RTBMFeatures", "ThetaNetClassifier", "ThetaNetRegressor"]
