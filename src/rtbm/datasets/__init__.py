"""The data of the paper: nine densities and a time series, with formulas and seeded samplers; and jet images."""

from rtbm.datasets import jets
from rtbm.datasets.densities import (
    DENSITIES,
    SAMPLE_LIMIT,
    TargetDensity,
    cauchy,
    cauchy_mixture,
    correlated_gaussian,
    correlated_mixture,
    custom,
    gamma,
    gaussian_mixture,
    three_gaussians,
    uniform,
)
from rtbm.datasets.series import TimeSeries, time_series

__all__ = [
    "DENSITIES",
    "SAMPLE_LIMIT",
    "TargetDensity",
    "TimeSeries",
    "cauchy",
    "cauchy_mixture",
    "correlated_gaussian",
    "correlated_mixture",
    "custom",
    "gamma",
    "gaussian_mixture",
    "jets",
    "three_gaussians",
    "time_series",
    "uniform",
]
