"""Probability distributions: immutable values with densities, samples and moments."""

from rtbm.distributions.discrete_gaussian import DiscreteGaussian

__all__ = ["DiscreteGaussian"]
