"""Probability distributions: immutable values with densities, samples and moments."""

from rtbm.distributions.conditional import ConditionalDistribution
from rtbm.distributions.continuous import ContinuousBoltzmannMachine
from rtbm.distributions.discrete_gaussian import DiscreteGaussian
from rtbm.distributions.integration.expectations import Estimate
from rtbm.distributions.machine_batch import RTBMBatch
from rtbm.distributions.mapped import MappedDistribution
from rtbm.distributions.maps import ColumnMap, Interval, LearnedMargin, StraightTails, YeoJohnson
from rtbm.distributions.mixed import CategoryColumn, MixedDistribution, NumberColumn
from rtbm.distributions.mixture import RTBMMixture
from rtbm.distributions.rtbm import RTBMDistribution

__all__ = [
    "CategoryColumn",
    "ColumnMap",
    "ConditionalDistribution",
    "ContinuousBoltzmannMachine",
    "DiscreteGaussian",
    "Estimate",
    "Interval",
    "LearnedMargin",
    "MappedDistribution",
    "MixedDistribution",
    "NumberColumn",
    "RTBMBatch",
    "RTBMDistribution",
    "RTBMMixture",
    "StraightTails",
    "YeoJohnson",
]
