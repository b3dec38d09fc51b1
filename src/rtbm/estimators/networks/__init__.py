"""Networks of theta units and ordinary ones."""

from rtbm.estimators.networks.estimators import ThetaNetClassifier, ThetaNetRegressor

__all__ = ["ThetaNetClassifier", "ThetaNetRegressor"]
