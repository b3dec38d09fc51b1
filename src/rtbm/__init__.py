"""rtbm: Riemann-Theta Boltzmann Machines, from the theta function up.

Names are imported when they are first used, so that `import rtbm` and `rtbm --help` do not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtbm import datasets, nn, parameters
    from rtbm.distributions import (
        BoundedDistribution,
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
        SpikeWarning,
        TooManyNodesError,
        TooManyTermsError,
    )
    from rtbm.estimators import (
        RTBMClassifier,
        RTBMDensity,
        RTBMDensityCV,
        RTBMFeatures,
        ThetaNetClassifier,
        ThetaNetRegressor,
    )
    from rtbm.persistence import load, save
    from rtbm.theta import ThetaMoments, ThetaPlan, log_theta, riemann_theta, theta_moments
    from rtbm.version import __version__

_SUBMODULES = ("datasets", "nn", "parameters")
_HOMES = {
    "BoundedDistribution": "distributions",
    "ContinuousBoltzmannMachine": "distributions",
    "DiscreteGaussian": "distributions",
    "Estimate": "distributions",
    "FileError": "errors",
    "InvalidInputError": "errors",
    "NormalizerError": "errors",
    "NotPositiveDefiniteError": "errors",
    "RTBMClassifier": "estimators",
    "RTBMDensity": "estimators",
    "RTBMDensityCV": "estimators",
    "RTBMDistribution": "distributions",
    "RTBMError": "errors",
    "RTBMFeatures": "estimators",
    "RTBMMixture": "distributions",
    "SamplingError": "errors",
    "SpikeWarning": "errors",
    "ThetaMoments": "theta",
    "ThetaNetClassifier": "estimators",
    "ThetaNetRegressor": "estimators",
    "ThetaPlan": "theta",
    "TooManyNodesError": "errors",
    "TooManyTermsError": "errors",
    "__version__": "version",
    "load": "persistence",
    "log_theta": "theta",
    "riemann_theta": "theta",
    "save": "persistence",
    "theta_moments": "theta",
}
"""The module that defines each public name."""


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"rtbm.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'rtbm' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rtbm.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "BoundedDistribution",
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
    "SpikeWarning",
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
