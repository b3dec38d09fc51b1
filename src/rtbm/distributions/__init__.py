"""Probability distributions: immutable values with densities, samples and moments."""

from rtbm.distributions.bounded import BoundedDistribution
from rtbm.distributions.conditional import ConditionalDistribution
from rtbm.distributions.continuous import ContinuousBoltzmannMachine
from rtbm.distributions.discrete_gaussian import DiscreteGaussian
from rtbm.distributions.integration.expectations import Estimate
from rtbm.distributions.mixture import RTBMMixture
from rtbm.distributions.rtbm import RTBMDistribution

__all__ = [
    "BoundedDistribution",
    "ConditionalDistribution",
    "ContinuousBoltzmannMachine",
    "DiscreteGaussian",
    "Estimate",
    "RTBMDistribution",
    "RTBMMixture",
]
