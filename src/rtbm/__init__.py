"""rtbm: Riemann-Theta Boltzmann Machines, from the theta function up."""

import importlib
from typing import TYPE_CHECKING, Any

from rtbm import datasets, nn, parameters
from rtbm.distributions import (
    ContinuousBoltzmannMachine,
    DiscreteGaussian,
    Estimate,
    RTBMDistribution,
    RTBMMixture,
)
from rtbm.errors import (
    FileError,
    InvalidInputError,
    NormalizerError,
    NotPositiveDefiniteError,
    RTBMError,
    SamplingError,
    TooManyNodesError,
    TooManyTermsError,
)
from rtbm.theta import ThetaMoments, ThetaPlan, log_theta, riemann_theta, theta_moments
from rtbm.version import __version__

if TYPE_CHECKING:
    from rtbm.estimators import (
        RTBMClassifier,
        RTBMDensity,
        RTBMDensityCV,
        RTBMFeatures,
        ThetaNetClassifier,
        ThetaNetRegressor,
    )
    from rtbm.persistence import load, save

_LATER = {
    "RTBMClassifier": "rtbm.estimators",
    "RTBMDensity": "rtbm.estimators",
    "RTBMDensityCV": "rtbm.estimators",
    "RTBMFeatures": "rtbm.estimators",
    "ThetaNetClassifier": "rtbm.estimators",
    "ThetaNetRegressor": "rtbm.estimators",
    "load": "rtbm.persistence",
    "save": "rtbm.persistence",
}
"""Names that are imported when they are first used: they need more than torch and numpy."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'rtbm' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)


__all__ = [
    "ContinuousBoltzmannMachine",
    "DiscreteGaussian",
    "Estimate",
    "FileError",
    "InvalidInputError",
    "NormalizerError",
    "NotPositiveDefiniteError",
    "RTBMClassifier",
    "RTBMDensity",
    "RTBMDensityCV",
    "RTBMDistribution",
    "RTBMError",
    "RTBMFeatures",
    "RTBMMixture",
    "SamplingError",
    "ThetaMoments",
    "ThetaNetClassifier",
    "ThetaNetRegressor",
    "ThetaPlan",
    "TooManyNodesError",
    "TooManyTermsError",
    "__version__",
    "datasets",
    "load",
    "log_theta",
    "nn",
    "parameters",
    "riemann_theta",
    "save",
    "theta_moments",
]
