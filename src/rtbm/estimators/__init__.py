"""Estimators with the conventions of scikit-learn."""

from rtbm.estimators.density import RTBMDensity, RTBMDensityCV
from rtbm.estimators.features import RTBMClassifier, RTBMFeatures
from rtbm.estimators.networks import ThetaNetClassifier, ThetaNetRegressor
from rtbm.estimators.outliers import RTBMOutlierDetector
from rtbm.estimators.regression import RTBMRegressor

__all__ = [
    "RTBMClassifier",
    "RTBMDensity",
    "RTBMDensityCV",
    "RTBMFeatures",
    "RTBMOutlierDetector",
    "RTBMRegressor",
    "ThetaNetClassifier",
    "ThetaNetRegressor",
]
