"""Every tolerance of the tests, in one place. They never loosen to make a test pass."""

import numpy as np

LOG_THETA = 1e-11
"""Relative error of θ̃ (absolute error of its logarithm) at the default tolerance in float64."""
LAST_PLACES = 4
"""A float64 logarithm of size L cannot resolve more than spacing(L): so many of those are allowed beside."""
SAME = 1e-11
"""Two ways to the same number, relative or absolute, where both are well conditioned."""
WORSE = 1e-9
"""The same where conditioning or a numerical comparison costs two digits."""
MOMENTS = 1e-10
"""Absolute error of mean, covariance and third cumulant, in units of their natural size."""
FLOAT32 = 2e-6
P_VALUE = 1e-4
"""Goodness-of-fit tests with a fixed seed fail below this probability."""


def allowed(log_theta: float) -> float:
    return LOG_THETA + LAST_PLACES * float(np.spacing(abs(log_theta)))


ROUNDINGS = 10
"""Two ways to one number may differ as if each parameter had been rounded so often: see `machines.rounding_bound`."""
LOG_PROB = 1e-10
"""Absolute error of log P at points where the parameters determine it to that accuracy."""
INTEGRAL = 1e-9
"""How far ∫P may be from 1, quadrature of the test included."""
