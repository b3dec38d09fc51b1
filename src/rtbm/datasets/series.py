"""The time series that the paper's networks learn and extrapolate."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rtbm.common import Floats
from rtbm.validation import check_integer


@dataclass(frozen=True)
class TimeSeries:
    """The paper's time series: a linear trend, two sine waves, and noise of variance 1::

        y(t) = 0.02 t + 0.5 sin(t + 0.1) + 0.75 cos(0.25 t − 0.3) + N(0, 1)

    Attributes
    ----------
    end : float
        Observations lie in [0, end].
    n_points : int
        Number of observations in the paper.
    """

    end: float = 100.0
    n_points: int = 500

    def signal(self, t: Any) -> Floats:
        """The noise-free series at times t, in the shape of t.

        Examples
        --------
        >>> round(float(time_series.signal(0.0)), 3)
        0.766
        """
        t = np.asarray(t, dtype=np.float64)
        return 0.02 * t + 0.5 * np.sin(t + 0.1) + 0.75 * np.cos(0.25 * t - 0.3)

    def sample(self, n: int | None = None, seed: int = 0) -> tuple[Floats, Floats]:
        """Evenly spaced times (n, 1) and noisy observations (n,).

        Examples
        --------
        >>> t, y = time_series.sample(seed=1)
        >>> t.shape, y.shape, float(t[-1, 0])
        ((500, 1), (500,), 100.0)
        """
        n = self.n_points if n is None else check_integer(n, "n", 2)
        t = np.linspace(0, self.end, n)
        return t[:, None], self.signal(t) + np.random.default_rng(seed).normal(size=n)


time_series = TimeSeries()
