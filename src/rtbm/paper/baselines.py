"""Density estimators beside which machines stand: mixtures, kernels, a Boltzmann machine with bits, a spline flow."""

import importlib.util
import math
import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.neighbors import KernelDensity
from torch import Tensor

from rtbm.common import Floats

HAS_FLOW = importlib.util.find_spec("zuko") is not None
"""Whether the spline flow can be fitted: `pip install "rtbm[bench]"`."""
COMPONENTS, QUICK_COMPONENTS = (1, 2, 3, 4, 6, 8, 10, 13, 16), (1, 2, 3, 10)
BANDWIDTHS = np.geomspace(0.02, 2.0, 9)
"""In standard deviations of the data; the best and its neighbours are then divided further."""
FOLDS, QUICK_FOLDS = 5, 2
QUICK_ROWS = 800
"""On which quick runs find the width of kernels, which is then scaled to all rows."""
NODES = {1: 1000, 2: 120}
"""Points along each axis at which a density is summed up, for one and two dimensions."""
SMALLEST_WIDTH = 0.02
"""Of a visible unit of the Boltzmann machine, in standard deviations of the data."""


def gaussian_mixture(X: Floats, n_components: int, seed: int, quick: bool) -> GaussianMixture:
    """A mixture of Gaussians by EM, from three starts."""
    effort = {} if quick else {"tol": 1e-5, "max_iter": 500, "n_init": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return GaussianMixture(n_components, random_state=seed, **effort).fit(X)


def tuned_gaussian_mixture(X: Floats, seed: int, quick: bool) -> GaussianMixture:
    """A mixture whose number of Gaussians has the best likelihood in cross-validation."""
    candidates = [k for k in (QUICK_COMPONENTS if quick else COMPONENTS) if k * (X.shape[1] + 1) < len(X) // 2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        folds = KFold(QUICK_FOLDS if quick else FOLDS, shuffle=True, random_state=seed)
        model = GaussianMixture(max_iter=300, random_state=seed)
        search = GridSearchCV(model, {"n_components": candidates}, cv=folds).fit(X)
    return gaussian_mixture(X, search.best_params_["n_components"], seed, quick)


def kernels(X: Floats, bandwidth: float) -> KernelDensity:
    """A Gaussian around each point."""
    return KernelDensity(bandwidth=bandwidth, rtol=1e-8).fit(X)


def tuned_kernels(X: Floats, seed: int, quick: bool) -> KernelDensity:
    """Gaussians whose width has the best likelihood in cross-validation."""
    folds = KFold(QUICK_FOLDS if quick else FOLDS, shuffle=True, random_state=seed)
    widths, ratio = BANDWIDTHS * X.std(axis=0).mean(), BANDWIDTHS[1] / BANDWIDTHS[0]
    rows = X[:QUICK_ROWS] if quick else X
    for finer in (ratio,) if quick else (ratio, ratio**0.25):
        found = GridSearchCV(KernelDensity(rtol=1e-4), {"bandwidth": widths}, cv=folds).fit(rows)
        best = found.best_params_["bandwidth"]
        widths = best * finer ** np.linspace(-0.75, 0.75, 7)
    return kernels(X, best * (len(X) / len(rows)) ** (-1 / (X.shape[1] + 4)))


class BinaryBoltzmann:
    """A Boltzmann machine with Gaussian visible and binary hidden units, fitted by exact maximum likelihood.

    ::

        P(v) ∝ exp(−½ Σ_i ((v_i − b_i)/σ_i)²) Π_j (1 + exp(c_j + Σ_i w_ij v_i))

    In one and two dimensions the normaliser is a sum over a fine grid, so that L-BFGS can follow the gradient to the
    end, where contrastive divergence would stop short of it.

    Parameters
    ----------
    n_hidden : int
        Hidden units.
    max_iter : int
        Iterations of L-BFGS.
    seed : int
        For the first weights.
    """

    def __init__(self, n_hidden: int = 20, max_iter: int = 1000, seed: int = 0):
        self.n_hidden, self.max_iter, self.seed = n_hidden, max_iter, seed

    def fit(self, X: Floats) -> "BinaryBoltzmann":
        """Fit to data (n, 1 or 2)."""
        from scipy.optimize import minimize

        self._mean, self._scale = X.mean(axis=0), X.std(axis=0)
        x = torch.from_numpy((X - self._mean) / self._scale)
        axes = [torch.linspace(float(c.min()) - 2, float(c.max()) + 2, NODES[x.shape[1]], dtype=x.dtype) for c in x.T]
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
        return self

    def score_samples(self, X: Floats) -> Floats:
        """log P (n,)."""
        x = torch.from_numpy((X - self._mean) / self._scale)
        return (self._log_weight(self._vector, x) - self._log_z).numpy() - np.log(self._scale).sum()

    def score(self, X: Floats) -> float:
        """The mean of log P."""
        return float(self.score_samples(X).mean())

    def _start(self, x: Tensor) -> Floats:
        """Units that switch at random points of the data."""
        rng = np.random.default_rng(self.seed)
        d = x.shape[1]
        W = rng.standard_normal((d, self.n_hidden))
        points = x.numpy()[rng.integers(0, len(x), self.n_hidden)]
        return np.concatenate([np.zeros(2 * d), -(W * points.T).sum(axis=0), W.ravel()])

    def _log_weight(self, vector: Tensor, x: Tensor) -> Tensor:
        """The logarithm of the density, not normalised."""
        d, n_hidden = x.shape[1], self.n_hidden
        b, log_width, c, W = vector.split([d, d, n_hidden, d * n_hidden])
        width = SMALLEST_WIDTH + log_width.exp()
        steps = torch.nn.functional.softplus(c + x @ W.reshape(d, n_hidden))
        return -0.5 * ((x - b) / width).square().sum(dim=1) + steps.sum(dim=1)

    def _log_normaliser(self, vector: Tensor) -> Tensor:
        return self._log_weight(vector, self._grid).logsumexp(dim=0) + self._log_cell


class SplineFlow:
    """A neural spline flow (zuko), by Adam with a falling step size; the iteration that predicts held-out data best.

    Parameters
    ----------
    max_iter : int
        Steps of Adam, each on all training data; None for 600 in one dimension, where steps are cheap, and else 300.
    seed : int
        For the first weights, and for which fifth of the data is held out.
    """

    def __init__(self, max_iter: int | None = None, seed: int = 0):
        self.max_iter, self.seed = max_iter, seed

    def fit(self, X: Floats) -> "SplineFlow":
        """Fit to data (n, d)."""
        import zuko

        self._mean, self._scale = X.mean(axis=0), X.std(axis=0)
        x = self._standard(X)
        mine = np.random.default_rng(self.seed).permutation(len(x)) % 5 > 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self._flow = zuko.flows.NSF(features=x.shape[1], transforms=2, hidden_features=(32, 32))
        one = x.shape[1] == 1  # its parameters are then plain numbers, and not weights of a network
        max_iter = self.max_iter or (600 if one else 300)
        optimizer = torch.optim.Adam(self._flow.parameters(), lr=5e-2 if one else 5e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max_iter)
        best, kept = -math.inf, self._flow.state_dict()
        for step in range(max_iter):
            if step % 10 == 0 and (held_out := float(self._log_prob(x[~mine]).mean())) > best:
                best, kept = held_out, {name: value.clone() for name, value in self._flow.state_dict().items()}
            loss = -self._flow().log_prob(x[mine]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        self._flow.load_state_dict(kept)
        return self

    def score_samples(self, X: Floats) -> Floats:
        """log P (n,)."""
        return self._log_prob(self._standard(X)).double().numpy() - np.log(self._scale).sum()

    def score(self, X: Floats) -> float:
        """The mean of log P."""
        return float(self.score_samples(X).mean())

    def _standard(self, X: Floats) -> Tensor:
        return torch.tensor((X - self._mean) / self._scale, dtype=torch.float32)

    @torch.no_grad()
    def _log_prob(self, x: Tensor) -> Tensor:
        return self._flow().log_prob(x)
