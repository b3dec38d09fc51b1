"""When a paired difference between two methods is clear."""

import math

from rtbm.common import Floats

ENOUGH = 5
"""Pairs that an error needs."""


def corrected_error(paired: Floats, ratio: float) -> float:
    """The standard error of the mean of paired differences for new data, by Nadeau and Bengio.

    Random splits share their data, so that their spread alone would be too small an error; it is enlarged by the ratio
    of test to training data. Independent samples have ratio 0.
    """
    spread = float(paired.var(ddof=1)) if len(paired) > 1 else math.nan
    return math.sqrt((1 / len(paired) + ratio) * spread)


def is_clear(mean: float, error: float, n: int) -> bool:
    """Whether the 95 % interval of a mean of n differences, by Student's t, leaves out 0.

    Examples
    --------
    >>> is_clear(1.0, 0.3, 10), is_clear(1.0, 0.6, 10)
    (True, False)
    """
    from scipy.stats import t

    return n >= ENOUGH and bool(abs(mean) > t.ppf(0.975, n - 1) * error)
