"""The data of the paper: nine densities and a time series, with formulas and seeded samplers; and jet images."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rtbm.common import TWO_PI, Floats
from rtbm.datasets import jets as jets
from rtbm.validation import as_real, check_integer, check_vectors

Formula = Callable[[Floats], Floats]
Sampler = Callable[[np.random.Generator, int], Floats]

SAMPLE_LIMIT = 20.0
"""The paper keeps only samples whose coordinates are all below this in size; other values give other samples."""


@dataclass(frozen=True)
class TargetDensity:
    """A density with a known formula and a sampler, for estimators to be tested on.

    Attributes
    ----------
    name : str
        Its name in `DENSITIES`.
    n_features : int
        The number of dimensions.
    n_samples : int
        How many samples the paper takes.
    n_hidden, n_components : int
        The size of the paper's fit: hidden units of each machine, and machines in the mixture.
    """

    name: str
    n_features: int
    n_samples: int
    n_hidden: int
    n_components: int
    _pdf: Formula = field(repr=False)
    _draw: Sampler = field(repr=False)

    def pdf(self, x: Any) -> Floats:
        """The density (n,) at points x (n, n_features).

        Examples
        --------
        >>> uniform.pdf([[0.0], [6.0]])
        array([0.1, 0. ])
        """
        points = check_vectors(as_real(x, "x"), "x", self.n_features).double().numpy()
        return self._pdf(points)

    def sample(self, n: int | None = None, seed: int = 0, limit: float = SAMPLE_LIMIT) -> Floats:
        """Draw n samples (n, n_features) whose coordinates are all below `limit` in size; n is the paper's by default.

        Examples
        --------
        >>> gamma.sample(3, seed=1).shape
        (3, 1)
        """
        n = check_integer(self.n_samples if n is None else n, "n", 0)
        rng = np.random.default_rng(seed)
        kept = np.empty((0, self.n_features))
        while len(kept) < n:
            draws = self._draw(rng, max(64, n - len(kept)))
            kept = np.concatenate([kept, draws[(np.abs(draws) < limit).all(axis=1)]])
        return kept[:n]


def _normal(mean: Any, covariance: Any) -> tuple[Formula, Sampler]:
    mean, L = np.asarray(mean, dtype=float), np.linalg.cholesky(np.asarray(covariance, dtype=float))
    log_volume = 0.5 * len(mean) * math.log(TWO_PI) + math.log(np.prod(np.diag(L)))

    def pdf(x: Floats) -> Floats:
        noise = np.linalg.solve(L, (x - mean).T)
        return np.exp(-0.5 * (noise**2).sum(axis=0) - log_volume)

    return pdf, lambda rng, n: mean + rng.standard_normal((n, len(mean))) @ L.T


def _cauchy(centre: float, width: float) -> tuple[Formula, Sampler]:
    def pdf(x: Floats) -> Floats:
        return width / (math.pi * ((x[:, 0] - centre) ** 2 + width**2))

    return pdf, lambda rng, n: centre + width * rng.standard_cauchy((n, 1))


def _mixture(weights: list[float], parts: list[tuple[Formula, Sampler]]) -> tuple[Formula, Sampler]:
    def pdf(x: Floats) -> Floats:
        return np.sum([w * part_pdf(x) for w, (part_pdf, _) in zip(weights, parts, strict=True)], axis=0)

    def draw(rng: np.random.Generator, n: int) -> Floats:
        chosen = rng.choice(len(parts), size=n, p=weights)
        draws = np.stack([part_draw(rng, n) for _, part_draw in parts])
        return draws[chosen, np.arange(n)]

    return pdf, draw


def _gamma_pdf(x: Floats, shape: float = 7.5) -> Floats:
    positive = np.where(x[:, 0] > 0, x[:, 0], 1.0)
    return np.where(x[:, 0] > 0, np.exp((shape - 1) * np.log(positive) - positive - math.lgamma(shape)), 0.0)


_CUSTOM_TOTAL = 3 + (4 * math.sqrt(2) + 5) / 3  # 6.5523: the integral of both pieces


def _custom_pdf(x: Floats) -> Floats:
    """2 − x/2 on [0, 2), then 2 − (x − 3)² up to 3 + √2, normalised."""
    v = x[:, 0]
    first, second = (v >= 0) & (v < 2), (v >= 2) & (v <= 3 + math.sqrt(2))
    return np.where(first, 2 - v / 2, np.where(second, 2 - (v - 3) ** 2, 0.0)) / _CUSTOM_TOTAL


def _custom_draw(rng: np.random.Generator, n: int) -> Floats:
    """Rejection sampling from a box; the density reaches its height at 0 and at 3."""
    x, height = rng.uniform(0, 3 + math.sqrt(2), (4 * n, 1)), rng.uniform(0, 2 / _CUSTOM_TOTAL, 4 * n)
    return x[height < _custom_pdf(x)]


_CORRELATED = [[1.0, 0.8], [0.8, 2.0]]
_UNCORRELATED = [[1.0, 0.0], [0.0, 1.0]]
_UNIFORM = (lambda x: np.where(np.abs(x[:, 0]) <= 5, 0.1, 0.0), lambda rng, n: rng.uniform(-5, 5, (n, 1)))
_CAUCHYS = _mixture([0.6, 0.1, 0.3], [_cauchy(0, 1), _cauchy(5, 5), _cauchy(10, 1)])
_NORMALS = _mixture([0.6, 0.1, 0.3], [_normal([-5], [[9]]), _normal([2], [[4]]), _normal([5], [[25]])])
_PAIR = _mixture([0.5, 0.5], [_normal([2, 2], _CORRELATED), _normal([-2, -2], _UNCORRELATED)])
_ROW = _mixture([0.5, 0.25, 0.25], [_normal([x, 0], _UNCORRELATED) for x in (0, 4, -4)])

gamma: TargetDensity = TargetDensity("gamma", 1, 2000, 2, 1, _gamma_pdf, lambda rng, n: rng.gamma(7.5, size=(n, 1)))
cauchy: TargetDensity = TargetDensity("cauchy", 1, 1000, 3, 1, *_cauchy(0, 1))
cauchy_mixture: TargetDensity = TargetDensity("cauchy_mixture", 1, 1000, 3, 2, *_CAUCHYS)
gaussian_mixture: TargetDensity = TargetDensity("gaussian_mixture", 1, 5000, 3, 1, *_NORMALS)
custom: TargetDensity = TargetDensity("custom", 1, 5000, 4, 1, _custom_pdf, _custom_draw)
uniform: TargetDensity = TargetDensity("uniform", 1, 5000, 3, 1, *_UNIFORM)
correlated_gaussian: TargetDensity = TargetDensity("correlated_gaussian", 2, 5000, 1, 1, *_normal([0, 0], _CORRELATED))
correlated_mixture: TargetDensity = TargetDensity("correlated_mixture", 2, 5000, 1, 2, *_PAIR)
three_gaussians: TargetDensity = TargetDensity("three_gaussians", 2, 5000, 2, 1, *_ROW)

DENSITIES = {density.name: density for density in list(globals().values()) if isinstance(density, TargetDensity)}
"""The nine densities of the paper's table, by name."""


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


time_series: TimeSeries = TimeSeries()
