"""Estimators with the conventions of scikit-learn."""

from rtbm.estimators.classification import RTBMClassifier
from rtbm.estimators.density.committee import RTBMDensityCV
from rtbm.estimators.density.estimator import RTBMDensity
from rtbm.estimators.features.classifier import make_patch_classifier
from rtbm.estimators.features.transformer import RTBMFeatures
from rtbm.estimators.forecasting import RTBMForecaster
from rtbm.estimators.imputation import RTBMImputer
from rtbm.estimators.networks.estimators import ThetaNetClassifier, ThetaNetRegressor
from rtbm.estimators.outliers import RTBMOutlierDetector
from rtbm.estimators.regression import RTBMRegressor

__all__ = [
    "RTBMClassifier",
    "RTBMDensity",
    "RTBMDensityCV",
    "RTBMFeatures",
    "RTBMForecaster",
    "RTBMImputer",
    "RTBMOutlierDetector",
    "RTBMRegressor",
    "ThetaNetClassifier",
    "ThetaNetRegressor",
    "make_patch_classifier",
]
