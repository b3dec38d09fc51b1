"""Verdicts on claims of the paper, and the paired comparisons that they rest on."""

import math
from enum import StrEnum
from typing import NamedTuple

from scipy.stats import t

from rtbm.common import Floats

MIN_PAIRS = 5
"""Fewest paired differences for which an error is stated; with fewer, no difference counts as clear."""


class Status(StrEnum):
    """The status of a claim of the paper.

    NOT_COMPARABLE is for numbers whose definition or data the paper does not give, NOTED for results that it does not
    report.
    """

    BEATEN = "beaten"
    REPRODUCED = "reproduced"
    NOT_REACHED = "not reached"
    NOT_COMPARABLE = "not comparable"
    TOO_FEW = "too few seeds"
    NOTED = "beyond the paper"


class Verdict(NamedTuple):
    """The status of a claim, and the numbers behind it."""

    status: Status
    text: str


class Difference(NamedTuple):
    """The mean of paired differences between two methods, and its standard error for new data."""

    mean: float
    error: float
    n_pairs: int

    @classmethod
    def paired(cls, first: Floats, second: Floats, ratio: float = 0.0) -> "Difference":
        """Compare scores (n,) of two methods on the same samples or splits, by Nadeau and Bengio.

        Random splits share their data, so their spread alone understates the error. `ratio` is that of test to training
        data, and enlarges it. Independent samples have ratio 0.

        Examples
        --------
        >>> import numpy as np
        >>> first, second = np.array([1.0, 3.0, 2.0, 4.0, 3.0]), np.array([0.0, 2.0, 0.0, 3.0, 2.0])
        >>> difference = Difference.paired(first, second)
        >>> difference.mean, round(difference.error, 6), difference.is_clear
        (1.2, 0.2, True)
        """
        differences = first - second
        variance = float(differences.var(ddof=1)) if len(differences) > 1 else math.nan
        return cls(float(differences.mean()), math.sqrt((1 / len(differences) + ratio) * variance), len(differences))

    @property
    def p_value(self) -> float:
        """Two-sided p-value of a mean of 0, by Student's t."""
        if self.error == 0:
            return 1.0 if self.mean == 0 else 0.0
        return 2 * float(t.sf(abs(self.mean) / self.error, self.n_pairs - 1))

    @property
    def is_clear(self) -> bool:
        """Whether there are MIN_PAIRS pairs, and the 95 % interval of the mean excludes 0."""
        return self.n_pairs >= MIN_PAIRS and self.p_value < 0.05
