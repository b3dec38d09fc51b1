"""rtbm: Riemann-Theta Boltzmann Machines, from the theta function up."""

from importlib.metadata import PackageNotFoundError, version

from rtbm import datasets, nn, parameters
from rtbm.distributions import (
    ContinuousBoltzmannMachine,
    DiscreteGaussian,
    Estimate,
    RTBMDistribution,
    RTBMMixture,
)
from rtbm.errors import (
    InvalidInputError,
    NormalizerError,
    NotPositiveDefiniteError,
    RTBMError,
    SamplingError,
    TooManyNodesError,
    TooManyTermsError,
)
from rtbm.theta import ThetaMoments, ThetaPlan, log_theta, riemann_theta, theta_moments

try:
    __version__ = version("rtbm")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "ContinuousBoltzmannMachine",
    "DiscreteGaussian",
    "Estimate",
    "InvalidInputError",
    "NormalizerError",
    "NotPositiveDefiniteError",
    "RTBMDistribution",
    "RTBMError",
    "RTBMMixture",
    "SamplingError",
    "ThetaMoments",
    "ThetaPlan",
    "TooManyNodesError",
    "TooManyTermsError",
    "__version__",
    "datasets",
    "log_theta",
    "nn",
    "parameters",
    "riemann_theta",
    "theta_moments",
]
