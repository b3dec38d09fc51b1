"""The density estimators that experiments compare: machines, mixtures, kernels, a binary Boltzmann machine, a flow."""

import importlib.util
import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.neighbors import KernelDensity
from torch import Tensor

from experiments.records import timed
from rtbm.common import Floats
from rtbm.estimators import RTBMDensityCV

# More candidates, folds, rows or nodes make the baselines better, and slower.

MIXTURE_SIZES, QUICK_MIXTURE_SIZES = (1, 2, 3, 4, 6, 8, 10, 13, 16), (1, 2, 3, 10)
"""Numbers of Gaussians that cross-validation compares."""
COVARIANCE_TYPES, QUICK_COVARIANCE_TYPES = ("full", "tied", "diag"), ("full",)
"""Kinds of covariance matrices that cross-validation compares. In quick runs and for one feature it is only one."""
BAYESIAN_SIZE = 20
"""Most Gaussians of a Bayesian mixture, which gives those that it does not need almost no weight."""
BANDWIDTHS = np.geomspace(0.02, 2.0, 9)
"""Kernel widths that cross-validation compares first, in standard deviations; then finer ones around the best."""
BASELINE_FOLDS, QUICK_BASELINE_FOLDS = 5, 2
QUICK_KERNEL_ROWS = 800
"""Rows on which quick runs find the kernel width, which is then scaled to all rows."""
QUICK_FIT = {"n_init": 1, "tol": 1e-5, "max_iter": 30}
"""Options of the machines in quick runs."""
GRID_NODES = {1: 1000, 2: 120}
"""Nodes along each axis, in one and two dimensions, of the grid that normalises the binary Boltzmann machine."""
SMALLEST_UNIT_WIDTH = 0.02
"""Smallest width of a visible unit of the binary Boltzmann machine, in standard deviations; it prevents spikes."""
FLOW_SIZES, PATIENCE = ((2, 32), (3, 64)), 6
"""Transforms of the spline flow and widths of their two hidden layers, one of which is chosen; and how many checks
without a gain are waited for."""

Fit = Callable[[Floats, int, bool], Any]
"""fit(X, seed, quick): a fitted model with `score_samples`."""


def fit_and_score(
    methods: Mapping[str, Fit], X: Floats, seed: int, quick: bool, score: Callable[[str, Any], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Fit each method to X; its record is score(name, model), with the seconds that the fit took."""
    records = {}
    for name, fit in methods.items():
        model, seconds = timed(fit, X, seed, quick)
        records[name] = {**score(name, model), "seconds": seconds}
    return records


def rtbm_committee(X: Floats, seed: int, quick: bool) -> RTBMDensityCV:
    """The committee of machines that cross-validation chooses; quick runs have few candidates."""
    if not quick:
        return RTBMDensityCV(atoms=None, rounded=None, random_state=seed).fit(X)
    several: list[dict[str, Any]] = [
        {"n_hidden": n, "n_components": k, "fallback": "gaussians"} for n, k in ((1, 1), (2, 1), (1, 2))
    ]
    one: list[dict[str, Any]] = [
        {"n_hidden": 2, "n_components": 2},
        {"n_hidden": 2, "n_components": 4, "regularization": 0.01},
    ]
    candidates = [{**candidate, **QUICK_FIT} for candidate in (one if X.shape[1] == 1 else several)]
    return RTBMDensityCV(candidates, cv=2, atoms=None, rounded=None, random_state=seed).fit(X)


def gaussian_mixture(
    X: Floats, n_components: int, seed: int, quick: bool, covariance_type: Any = "full"
) -> GaussianMixture:
    """A Gaussian mixture by EM, from three starts."""
    effort = {} if quick else {"tol": 1e-5, "max_iter": 500, "n_init": 3}
    return GaussianMixture(n_components, covariance_type=covariance_type, random_state=seed, **effort).fit(X)


def tuned_gaussian_mixture(X: Floats, seed: int, quick: bool) -> GaussianMixture:
    """A Gaussian mixture whose size and kind of covariance are chosen by the likelihood in cross-validation."""
    sizes = [k for k in (QUICK_MIXTURE_SIZES if quick else MIXTURE_SIZES) if k * (X.shape[1] + 1) < len(X) // 2]
    model = GaussianMixture(max_iter=300, random_state=seed)
    types = QUICK_COVARIANCE_TYPES if quick or X.shape[1] == 1 else COVARIANCE_TYPES
    grid = {"n_components": sizes, "covariance_type": types}
    best = GridSearchCV(model, grid, cv=_folds(seed, quick)).fit(X).best_params_
    return gaussian_mixture(X, best["n_components"], seed, quick, best["covariance_type"])


def bayesian_mixture(X: Floats, seed: int, quick: bool) -> BayesianGaussianMixture:
    """A variational mixture with a Dirichlet process, which chooses its size itself."""
    model = BayesianGaussianMixture(max_iter=50 if quick else 1000, random_state=seed)
    size = min(BAYESIAN_SIZE, len(X) // 2)
    while True:
        try:
            return model.set_params(n_components=size).fit(X)
        except ValueError:  # a covariance is singular
            if size == 1:
                raise
            size //= 2


def kernels(X: Floats, bandwidth: float) -> KernelDensity:
    """A Gaussian kernel around each point."""
    return KernelDensity(bandwidth=bandwidth, rtol=1e-8).fit(X)


def tuned_kernels(X: Floats, seed: int, quick: bool) -> KernelDensity:
    """Gaussian kernels whose width is chosen by the likelihood in cross-validation."""
    widths, ratio = BANDWIDTHS * X.std(axis=0).mean(), BANDWIDTHS[1] / BANDWIDTHS[0]
    rows = X[:QUICK_KERNEL_ROWS] if quick else X
    for finer in (ratio,) if quick else (ratio, ratio**0.25):
        found = GridSearchCV(KernelDensity(rtol=1e-4), {"bandwidth": widths}, cv=_folds(seed, quick)).fit(rows)
        best = found.best_params_["bandwidth"]
        widths = best * finer ** np.linspace(-0.75, 0.75, 7)
    return kernels(X, best * (len(X) / len(rows)) ** (-1 / (X.shape[1] + 4)))


def _folds(seed: int, quick: bool) -> KFold:
    return KFold(QUICK_BASELINE_FOLDS if quick else BASELINE_FOLDS, shuffle=True, random_state=seed)


class StandardisedDensity:
    """A density that is fitted to standardised data: `fit_standard` and `log_prob_standard` are in those units."""

    fit_standard: Callable[[Tensor], None]
    log_prob_standard: Callable[[Tensor], Tensor]

    def fit(self, X: Floats) -> Self:
        """Fit to data (n, d)."""
        self._mean, self._scale = X.mean(axis=0), X.std(axis=0)
        self.fit_standard(self._standard(X))
        return self

    def score_samples(self, X: Floats) -> Floats:
        """log P (n,)."""
        return self.log_prob_standard(self._standard(X)).double().numpy() - np.log(self._scale).sum()

    def _standard(self, X: Floats) -> Tensor:
        return torch.from_numpy((X - self._mean) / self._scale)


class BinaryBoltzmann(StandardisedDensity):
    """A Boltzmann machine with Gaussian visible and binary hidden units, fitted by exact maximum likelihood.

    ::

        P(v) ∝ exp(−½ Σ_i ((v_i − b_i)/σ_i)²) Π_j (1 + exp(c_j + Σ_i w_ij v_i))

    The normaliser is a sum over a fine grid, in one or two dimensions. So the gradient is exact, and L-BFGS converges
    in at most `max_iter` iterations; contrastive divergence would not. `seed` is that of the initial weights.
    """

    def __init__(self, n_hidden: int = 20, max_iter: int = 1000, seed: int = 0):
        self.n_hidden, self.max_iter, self.seed = n_hidden, max_iter, seed

    def fit_standard(self, x: Tensor) -> None:
        """Fit to standardised data."""
        n_nodes = GRID_NODES[x.shape[1]]
        axes = [torch.linspace(float(c.min()) - 2, float(c.max()) + 2, n_nodes, dtype=x.dtype) for c in x.T]
        self._grid = torch.cartesian_prod(*axes).reshape(-1, len(axes))
        self._log_cell = sum(math.log(axis[1] - axis[0]) for axis in axes)

        def loss(vector: Floats) -> tuple[float, Floats]:
            free = torch.from_numpy(vector).requires_grad_()
            value = self._log_normaliser(free) - self._log_weight(free, x).mean()
            (gradient,) = torch.autograd.grad(value, free)
            return float(value.detach()), gradient.numpy()

        options = {"maxiter": self.max_iter, "maxfun": 2 * self.max_iter, "ftol": 1e-10, "gtol": 1e-7}
        found = minimize(loss, self._start(x), jac=True, method="L-BFGS-B", options=options)
        self.n_iter_ = int(found.nit)
        self._vector = torch.from_numpy(found.x)
        self._log_z = float(self._log_normaliser(self._vector))

    def log_prob_standard(self, x: Tensor) -> Tensor:
        """log P (n,) in standardised units."""
        return self._log_weight(self._vector, x) - self._log_z

    def _start(self, x: Tensor) -> Floats:
        """Initial parameters: units that switch at random points of the data."""
        rng = np.random.default_rng(self.seed)
        d = x.shape[1]
        W = rng.standard_normal((d, self.n_hidden))
        points = x.numpy()[rng.integers(0, len(x), self.n_hidden)]
        return np.concatenate([np.zeros(2 * d), -(W * points.T).sum(axis=0), W.ravel()])

    def _log_weight(self, vector: Tensor, x: Tensor) -> Tensor:
        """The logarithm of the unnormalised density."""
        d, n_hidden = x.shape[1], self.n_hidden
        b, log_width, c, W = vector.split([d, d, n_hidden, d * n_hidden])
        width = SMALLEST_UNIT_WIDTH + log_width.exp()
        steps = torch.nn.functional.softplus(c + x @ W.reshape(d, n_hidden))
        return -0.5 * ((x - b) / width).square().sum(dim=1) + steps.sum(dim=1)

    def _log_normaliser(self, vector: Tensor) -> Tensor:
        return self._log_weight(vector, self._grid).logsumexp(dim=0) + self._log_cell


class SplineFlow(StandardisedDensity):
    """A neural spline flow (zuko), fitted by Adam to four fifths of the data, and judged by the others.

    Of FLOW_SIZES, the one with the best likelihood of the others is taken, at its best step. Training ends when that
    has not risen for PATIENCE checks, or after `max_iter` steps, each on all training data. `seed` is that of the
    initial weights, and of the choice of a fifth of the data to hold out.
    """

    def __init__(self, max_iter: int = 600, seed: int = 0):
        self.max_iter, self.seed = max_iter, seed

    def fit_standard(self, x: Tensor) -> None:
        """Fit to standardised data."""
        x = x.float()
        is_training = np.random.default_rng(self.seed).permutation(len(x)) % 5 > 0
        found = [self._train(x[is_training], x[~is_training], *size) for size in FLOW_SIZES]
        self._flow = max(found, key=lambda pair: pair[0])[1]

    def _train(self, training: Tensor, others: Tensor, transforms: int, width: int) -> tuple[float, Any]:
        """The best mean log-likelihood of other data, and the flow that has it."""
        import zuko

        d = training.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            flow = zuko.flows.NSF(features=d, transforms=transforms, hidden_features=(width, width))
        # with one column, the spline's parameters are free numbers, not outputs of a network
        optimizer = torch.optim.Adam(flow.parameters(), lr=5e-2 if d == 1 else 5e-3)
        best, kept, waited = -math.inf, flow.state_dict(), 0
        for step in range(self.max_iter):
            if step % 10 == 0:
                with torch.no_grad():
                    held_out = float(flow().log_prob(others).mean())
                waited += 1
                if held_out > best:
                    best, waited = held_out, 0
                    kept = {name: value.clone() for name, value in flow.state_dict().items()}
                if waited > PATIENCE:
                    break
            loss = -flow().log_prob(training).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        flow.load_state_dict(kept)
        return best, flow

    @torch.no_grad()
    def log_prob_standard(self, x: Tensor) -> Tensor:
        """log P (n,) in standardised units."""
        return self._flow().log_prob(x.float())


class VineCopula:
    """A vine copula (pyvinecopulib) of all families, with kernel densities as margins."""

    def __init__(self, X: Floats):
        import pyvinecopulib

        controls = pyvinecopulib.FitControlsVinecop(family_set=pyvinecopulib.all, num_threads=1)
        self._model = pyvinecopulib.Vinedist.from_data(X, controls=controls)

    def score_samples(self, X: Floats) -> Floats:
        """log P (n,); −∞ where it is not a number, since kernel margins are 0 far out."""
        return np.fmax(self._model.logpdf(X), -np.inf)


FLOW: dict[str, Fit] = (
    {"spline flow": lambda X, seed, quick: SplineFlow(25 if quick else 600, seed).fit(X)}
    if importlib.util.find_spec("zuko")
    else {}
)
VINE: dict[str, Fit] = (
    {"vine copula": lambda X, seed, quick: VineCopula(X)} if importlib.util.find_spec("pyvinecopulib") else {}
)
"""The flow, with few steps in quick runs, and the vine copula by name, if their packages are installed:
`pip install ".[bench]"` in a checkout."""
