"""The paper's own training: CMA-ES on the entries of A and B, from random starts (its sections 2 to 4).

What the paper says is done as it says: the elements of A = [[Q, Wᵀ], [W, T]] and B are optimised themselves, from
A = XXᵀ with entries of X uniform in [−1, 1]; all parameters are kept within a bound; candidates whose A is not positive
definite are drawn again. What it does not say is chosen here: biases start uniform in [−1, 1], weights of a mixture
equal, the first step size is the largest that leaves enough candidates valid, and the best of several runs by the
likelihood of the sample is taken.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, Self

import cma
import numpy as np
import torch
from scipy.special import logsumexp

from rtbm import log_theta
from rtbm.common import TWO_PI, Floats
from rtbm.errors import RTBMError
from rtbm.nn import theta_unit
from rtbm.nn.theta_layer import PAPER_RANGE
from rtbm.plotting import ActivationCurves

FIRST_STEP, VALID_SHARE, TRIALS = 1.0, 0.1, 200
"""The first step size of CMA-ES, which the paper says may have to be small: it is halved until this share of trial
candidates is valid."""
TOLERANCE = 1e-4
"""CMA-ES ends when the loss of recent generations differs by less: the paper's criterion for its network."""
MOST_REDRAWS = 10_000
"""A run ends if more candidates in a row than this are not valid."""
FAILED = 1e12
"""The loss of a candidate whose density leaves float64."""


class Evolution(NamedTuple):
    """The result of a run of CMA-ES."""

    vector: Floats
    loss: float


def evolve(
    loss: Callable[[Floats], float],
    start: Floats,
    seed: int,
    max_evaluations: int,
    bound: float = np.inf,
    is_valid: Callable[[Floats], bool] = lambda vector: True,
) -> Evolution:
    """Minimise a loss by CMA-ES, with candidates that are not valid drawn again."""
    noise, step = np.random.default_rng([seed, 0]).normal(size=(TRIALS, len(start))), FIRST_STEP
    while step > 1e-6 and np.mean([is_valid(start + step * trial) for trial in noise]) < VALID_SHARE:
        step /= 2
    limits = {} if np.isinf(bound) else {"bounds": [-bound, bound]}
    options = {"seed": seed + 1, "tolfun": TOLERANCE, "maxfevals": max_evaluations, "verbose": -9}
    search = cma.CMAEvolutionStrategy(start, step, options | limits)
    while not search.stop():
        candidates: list[Floats] = []
        refused = 0
        while len(candidates) < search.popsize and refused < MOST_REDRAWS:
            (candidate,) = search.ask(1)
            valid = bool(is_valid(candidate))
            candidates += [candidate] * valid
            refused += not valid
        if len(candidates) < search.popsize:
            break
        search.tell(candidates, [loss(candidate) for candidate in candidates])
    found = search.result
    return Evolution(start, FAILED) if found.xbest is None else Evolution(found.xbest, float(found.fbest))


class OriginalDensity:
    """A density with machines of the paper's size, trained as in the paper: the best of `n_runs` runs of CMA-ES.

    Parameters
    ----------
    n_hidden, n_components : int
        The size.
    bound : float
        The largest parameter; the paper gives 50, 40 or 30.
    seed, n_runs, max_evaluations : int
        The seed of the starts and of CMA-ES, the number of runs, and the most evaluations of a run.
    """

    def __init__(
        self, n_hidden: int, n_components: int, bound: float, seed: int, n_runs: int = 3, max_evaluations: int = 10_000
    ):
        self.n_hidden, self.n_components, self.bound = n_hidden, n_components, bound
        self.seed, self.n_runs, self.max_evaluations = seed, n_runs, max_evaluations

    def fit(self, X: Floats) -> Self:
        """Fit to data (n, d), as they are."""
        self._n_visible = X.shape[1]

        def loss(vector: Floats) -> float:
            try:
                value = -float(self._log_prob(vector, X).sum())
            except RTBMError:
                return FAILED
            return value if np.isfinite(value) else FAILED

        runs = []
        for run in range(self.n_runs):
            seed = self.seed * self.n_runs + run
            start = self._start(np.random.default_rng([seed, 1]))
            runs.append(evolve(loss, start, seed, self.max_evaluations, self.bound, self._is_valid))
        self.losses_ = [run.loss for run in runs]
        self._vector = min(runs, key=lambda run: run.loss).vector
        return self

    def score_samples(self, X: Floats) -> Floats:
        """log P (n,)."""
        return self._log_prob(self._vector, X)

    @property
    def _shape(self) -> tuple[int, int]:
        """The number of units of a machine, and of its parameters."""
        n = self._n_visible + self.n_hidden
        return n, n + n * (n + 1) // 2

    def _start(self, rng: np.random.Generator) -> Floats:
        n, _ = self._shape
        parts = []
        for _ in range(self.n_components):
            X = rng.uniform(-1, 1, (n, n))
            parts += [rng.uniform(-1, 1, n), (X @ X.T)[np.tril_indices(n)]]
        return np.concatenate([*parts, np.zeros(self.n_components if self.n_components > 1 else 0)])

    def _machines(self, vector: Floats) -> list[tuple[Floats, Floats]]:
        """A (n, n) and B (n,) of each machine, with the hidden units first."""
        n, size = self._shape
        found: list[tuple[Floats, Floats]] = []
        for part in vector[: self.n_components * size].reshape(self.n_components, size):
            A = np.zeros((n, n))
            A[np.tril_indices(n)] = part[n:]
            found.append((A + np.tril(A, -1).T, part[:n]))
        return found

    def _is_valid(self, vector: Floats) -> bool:
        return all(np.linalg.eigvalsh(A)[0] > 0 for A, _ in self._machines(vector))

    def _log_prob(self, vector: Floats, X: Floats) -> Floats:
        terms = np.stack([_machine_log_prob(A, B, X) for A, B in self._machines(vector)])
        logits = vector[self.n_components * self._shape[1] :] if self.n_components > 1 else np.zeros(1)
        return logsumexp(terms + (logits - logsumexp(logits))[:, None], axis=0)


def _machine_log_prob(A: Floats, B: Floats, X: Floats) -> Floats:
    """log P(v) (n,) as the paper prints it."""
    d = X.shape[1]
    h, v = slice(0, len(A) - d), slice(len(A) - d, len(A))
    Q, W, T, b_h, b_v = A[h, h], A[v, h], A[v, v], B[h], B[v]
    coupling = np.linalg.solve(T, np.column_stack([W, b_v]))
    schur, shifted = Q - W.T @ coupling[:, :-1], b_h - W.T @ coupling[:, -1]
    quadratic = 0.5 * ((X @ T) * X).sum(axis=1) + X @ b_v + 0.5 * b_v @ coupling[:, -1]
    log_volume = 0.5 * np.linalg.slogdet(T / TWO_PI)[1]
    ratio = _log_theta(X @ W + b_h, Q) - _log_theta(shifted, (schur + schur.T) / 2)
    return log_volume - quadratic + ratio


def _log_theta(z: Floats, Q: Floats) -> Any:
    with torch.no_grad():
        return log_theta(torch.from_numpy(z), torch.from_numpy(Q), tolerance=1e-9).numpy()


class OriginalNetwork:
    """A network of theta units of phase I on inputs as they are, trained as in the paper: CMA-ES, squared error.

    Weights and biases start uniform in [−1, 1], and q in [2, 18], which the paper gives for its other network. The best
    of `n_runs` runs by the loss on the training data is taken.
    """

    def __init__(self, sizes: tuple[int, ...], seed: int, n_runs: int = 4, max_evaluations: int = 20_000):
        self.sizes, self.seed, self.n_runs, self.max_evaluations = sizes, seed, n_runs, max_evaluations

    def fit(self, X: Floats, y: Floats) -> Self:
        """Train on inputs (n, d) and targets (n,)."""
        self._n_inputs = X.shape[1]

        def loss(vector: Floats) -> float:
            value = float(np.mean((self._outputs(vector, X)[-1][:, 0] - y) ** 2))
            return value if np.isfinite(value) else FAILED

        runs = []
        for run in range(self.n_runs):
            seed = self.seed * self.n_runs + run
            start = self._start(np.random.default_rng([seed, 2]))
            runs.append(evolve(loss, start, seed, self.max_evaluations, is_valid=self._is_valid))
        self._vector = min(runs, key=lambda run: run.loss).vector
        self.n_parameters_ = len(self._vector)
        return self

    def predict(self, X: Floats) -> Floats:
        """The outputs (n,)."""
        return self._outputs(self._vector, X)[-1][:, 0]

    def curves(self, X: Floats, n_points: int = 200) -> list[ActivationCurves]:
        """The activation functions of each layer, over the arguments that inputs cause."""
        outputs = [X, *self._outputs(self._vector, X)]
        found = []
        for (W, b, q), x in zip(self._layers(self._vector), outputs, strict=False):
            u = x @ W.T + b
            line = np.linspace(u.min(axis=0), u.max(axis=0), n_points)
            found.append(ActivationCurves("I", q, line, _theta_unit(line, q)))
        return found

    def _widths(self) -> list[tuple[int, int]]:
        return list(pairwise((self._n_inputs, *self.sizes)))

    def _start(self, rng: np.random.Generator) -> Floats:
        parts = [(rng.uniform(-1, 1, (a + 1) * b), rng.uniform(*PAPER_RANGE, b)) for a, b in self._widths()]
        return np.concatenate([number for part in parts for number in part])

    def _layers(self, vector: Floats) -> list[tuple[Floats, Floats, Floats]]:
        """W (b, a), b (b,) and q (b,) of each layer."""
        found, at = [], 0
        for a, b in self._widths():
            W, bias, q = np.split(vector[at : at + (a + 2) * b], [a * b, (a + 1) * b])
            found.append((W.reshape(b, a), bias, q))
            at += (a + 2) * b
        return found

    def _is_valid(self, vector: Floats) -> bool:
        return all((q > 0).all() for _, _, q in self._layers(vector))

    def _outputs(self, vector: Floats, X: Floats) -> list[Floats]:
        """The outputs (n, units) of each layer."""
        found, x = [], X
        for W, b, q in self._layers(vector):
            x = _theta_unit(x @ W.T + b, q)
            found.append(x)
        return found


def _theta_unit(u: Floats, q: Floats) -> Floats:
    with torch.no_grad():
        return theta_unit(torch.from_numpy(np.ascontiguousarray(u)), torch.from_numpy(np.ascontiguousarray(q))).numpy()
