"""Features from machines on groups of columns, and a classifier on them."""

from rtbm.estimators.features.classifier import RTBMClassifier
from rtbm.estimators.features.transformer import RTBMFeatures

__all__ = ["RTBMClassifier", "RTBMFeatures"]
