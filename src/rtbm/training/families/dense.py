"""Machines with dense Q: their starts, their prior, and the M-step of expectation maximisation."""

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from rtbm.common import PHASES, Floats
from rtbm.distributions import RTBMDistribution, RTBMMixture
from rtbm.errors import InvalidInputError
from rtbm.parameters import Lattice, count, log_cholesky, pack, triangle_of, unconstrain, unpack
from rtbm.theta.lattice import MAX_TERMS
from rtbm.training.coordinates import quantiles, structure
from rtbm.training.families.hidden import HiddenFamily
from rtbm.training.families.scaling import Scaling, find_scaling
from rtbm.training.sums import Evaluation, dense
from rtbm.validation import check_choice, check_integer, check_parameter_count

MAX_DENSE_UNITS = MAX_TERMS.bit_length() - 1
"""Most hidden units of a dense machine that is fitted. It starts as 2^n_hidden Gaussians, and sums have MAX_TERMS."""
RIGIDITY, STIFFNESS = 0.02, 10.0
"""The strength of the prior on A, and its mode STIFFNESS · 1. Without it, A goes to infinity for hidden units with two
states, and to zero for hidden units without effect. A stronger one biases fits to few observations."""
RANGE_TAIL = 0.005
"""The range of the data is between this quantile and its mirror image. A smaller one lets outliers widen the range."""
OVERLAP = 0.8
"""The standard deviation of v given h, in units of the distance between neighbouring centres. Smaller ones start with
separate peaks, larger ones with a blurred density."""
NEWTON_STEPS, NEWTON_GAIN = 3, 1e-7
"""Newton steps for P(h) in an M-step, which end when one gains less than NEWTON_GAIN in mean log P: the next one would
gain about the square. More cost time and hardly improve it, since the next M-step goes on."""
HALVINGS = 12
"""Trials of a Newton step. The last ones are steps of 0, so that one machine does not stop the others."""
LEAST_OBSERVATIONS = 1e-3
"""The M-step does not change machines whose share of the data is less than this many observations, since so few
determine nothing. Larger values leave more machines of a mixture where they started."""

Density = RTBMDistribution | RTBMMixture


class Prior(NamedTuple):
    """A penalty on fine structure, in units of observations: it plays the part of a bandwidth.

    It is divided by the number of observations, and so fades as they become many. See `Family.penalty`.
    """

    strength: float
    widths: Floats  # (Nv,): of the data along the axes


@dataclass(eq=False)
class Family:
    """One machine with dense Q, or a mixture of such machines, of given sizes.

    A member is a vector of `n_parameters` real numbers: the free parameters of each machine (`rtbm.parameters`), and
    for mixtures the logits of the weights. Every vector is a member, as far as float64 reaches.

    Parameters
    ----------
    n_visible, n_hidden, n_components : int
        The numbers of visible units, of hidden units of each machine, and of machines (default=1).
    phase : "I" or "II", default="I"
        The phase in which members show their natural parameters.

    Examples
    --------
    >>> Family(1, 30)
    Traceback (most recent call last):
    ...
    rtbm.errors.InvalidInputError: n_hidden must be at most 22, got 30: take more components
    """

    n_visible: int
    n_hidden: int
    _: KW_ONLY
    n_components: int = 1
    phase: str = "I"

    def __post_init__(self) -> None:
        self.n_visible, self.n_hidden, self.n_components = self.check_sizes(
            self.n_visible, self.n_hidden, self.n_components
        )
        check_choice(self.phase, "phase", PHASES)

    @staticmethod
    def check_sizes(n_visible: Any, n_hidden: Any, n_components: Any) -> tuple[int, int, int]:
        """Check that machines of these sizes can be fitted."""
        if isinstance(n_hidden, int | np.integer) and MAX_DENSE_UNITS < n_hidden < 2**63:
            raise InvalidInputError(f"n_hidden must be at most {MAX_DENSE_UNITS}, got {n_hidden}: take more components")
        given = {"n_visible": n_visible, "n_hidden": n_hidden, "n_components": n_components}
        n_visible, n_hidden, n_components = (check_integer(size, name, 1) for name, size in given.items())
        number = n_components * count(n_visible, n_hidden)
        sizes = f"n_hidden={n_hidden} and n_components={n_components} with {n_visible} or more features"
        check_parameter_count(number, sizes)
        return n_visible, n_hidden, n_components

    @property
    def n_machine_parameters(self) -> int:
        """The number of free parameters of each machine."""
        return count(self.n_visible, self.n_hidden)

    @property
    def n_parameters(self) -> int:
        """The length of the vector."""
        return self.n_components * self.n_machine_parameters + (self.n_components if self.n_components > 1 else 0)

    @property
    def n_degrees_of_freedom(self) -> int:
        """The number of independent parameters: the logits of K weights have one direction too many."""
        return self.n_components * self.n_machine_parameters + self.n_components - 1

    def single(self) -> Self:
        """The family of one machine of a mixture."""
        return replace(self, n_components=1)

    def split(self, vector: Tensor) -> tuple[list[Tensor], Tensor]:
        """The vectors of the machines, and the logits of their weights (K,)."""
        machines = vector[: self.n_components * self.n_machine_parameters]
        logits = vector[len(machines) :] if self.n_components > 1 else vector.new_zeros(1)
        return list(machines.split(self.n_machine_parameters)), logits

    def join(self, machines: list[Tensor], logits: Tensor) -> Tensor:
        """The vector of some machines and logits: the inverse of `split`."""
        return torch.cat([*machines, logits] if self.n_components > 1 else machines)

    def distribution(self, vector: Tensor) -> Density:
        """The distribution of a vector; gradients flow to it."""
        machines, logits = self.split(vector)
        if self.n_components == 1:
            return self.machine(vector)
        return RTBMMixture.from_logits(logits, [self.machine(machine) for machine in machines])

    def machine(self, vector: Tensor) -> RTBMDistribution:
        """The machine of its own part of a vector; gradients flow to it."""
        free = unpack(vector, self.n_visible, self.n_hidden)
        return RTBMDistribution.from_free(free, phase=self.phase)

    def vector(self, distribution: Density) -> Tensor:
        """The vector of a distribution of this family."""
        if isinstance(distribution, RTBMDistribution):
            return pack(distribution.free)
        return self.join([pack(c.free) for c in distribution.components], distribution.logits)

    def affine(self, vector: Tensor, root: Floats, mean: Floats | None = None) -> Tensor:
        """The vector of v' = root v + mean; without a mean it is 0."""
        M = torch.from_numpy(np.ascontiguousarray(root)).to(vector)
        c = vector.new_zeros(len(M)) if mean is None else torch.from_numpy(mean).to(vector)
        machines, logits = self.split(vector)
        return self.join([self._move(machine, M, c) for machine in machines], logits)

    def gaussian(self) -> Tensor:
        """The member that is the standard normal distribution, up to ripples of 1e-8.

        Its hidden units are so fine that they are nearly continuous. They lie along the principal axes in turn, and
        have half the variance of their axes.
        """
        unit = torch.arange(self.n_hidden)
        axis = unit % self.n_visible
        n_units = torch.bincount(axis, minlength=self.n_visible)
        F = torch.zeros(self.n_visible, self.n_hidden, dtype=torch.float64)
        A = 0.5 * torch.eye(self.n_hidden, dtype=torch.float64)  # Q = A + FᵀΣ⁻¹F is at most 1, and ripples exp(−2π²)
        F[axis, unit] = (0.25 / n_units[axis].double()).sqrt()
        covariance = torch.diag(torch.where(n_units > 0, 0.5, 1.0).double())
        lattice = Lattice(A, A.new_zeros(self.n_hidden), F, F.new_zeros(self.n_visible), covariance)
        machine = pack(unconstrain(lattice))
        return self.join([machine] * self.n_components, machine.new_zeros(self.n_components))

    def start(self, x: Floats, weights: Floats, index: int, rng: np.random.Generator) -> Tensor:
        """The vector of a start: see `evenly_spaced`."""
        return pack(unconstrain(evenly_spaced(x, weights, self.n_hidden, index, rng)))

    def penalty(self, vector: Floats, prior: Prior) -> tuple[float, Floats]:
        """The penalty of a member, and its derivative in the vector.

        With Σ the covariance of v given h and s the widths of the data along the axes::

            penalty = strength Σ_i s_i² (Σ⁻¹)_ii + RIGIDITY (tr A − STIFFNESS log det A)
        """
        gradient = np.zeros(len(vector))
        machines = dense.unpack_machines(vector, self.n_components, self.n_visible, self.n_hidden)
        value = dense.add_penalty(machines, prior.strength, prior.widths, RIGIDITY, STIFFNESS, gradient)
        return value, gradient

    def highest_log_peak(self, vector: Floats) -> float:
        """A bound on log P of a member at any point: no density exceeds the highest peak of its Gaussians."""
        d, size = self.n_visible, self.n_machine_parameters
        widths = vector[: self.n_components * size].reshape(-1, size)
        diagonal = np.cumsum(np.arange(1, d + 1)) - 1 - d * (d + 1) // 2  # the logarithms of the diagonal of L
        return -float(widths[:, diagonal].sum(axis=1).min()) - 0.5 * d * math.log(2 * math.pi)

    def maximise(self, evaluation: Evaluation, prior: Prior, total: float) -> Floats:
        """M-step: the parameters that maximise the expected complete-data log-likelihood plus prior.

        F, mean and Σ follow from a weighted regression of v on h, weights from counts, and P(h) from Newton steps.
        `total` is the number of observations.
        """
        machines, shares = evaluation.machines, evaluation.sums.shares * total
        F, mean, covariance = _regression(evaluation, prior, total)
        L_A, centre = _fit_hidden(evaluation, total)
        kept = shares < LEAST_OBSERVATIONS
        for new, old in ((L_A, machines.L_A), (centre, machines.centre), (F, machines.F), (mean, machines.mean)):
            new[kept] = old[kept]
        L = machines.L.copy()
        L[~kept] = np.linalg.cholesky(covariance[~kept])
        return dense.pack_machines(np.log(np.maximum(shares, 1e-300)), L_A, centre, F, mean, L)

    @property
    def is_scaled(self) -> bool:
        """Whether solvers use the expected complete-data information: it helps for mixtures on several features."""
        return min(self.n_visible, self.n_components) > 1

    def scaling(self, vector: Floats, value: float, gradient: Floats, evaluation: Evaluation, total: float) -> Scaling:
        """Coordinates in which the expected complete-data information at a vector is the identity."""
        hidden = HiddenFamily(evaluation.states, RIGIDITY / total, STIFFNESS)
        return find_scaling(vector, value, gradient, evaluation, total, hidden)

    def _move(self, vector: Tensor, M: Tensor, c: Tensor) -> Tensor:
        free = unpack(vector, self.n_visible, self.n_hidden)
        half = M @ triangle_of(free.visible_scale)
        moved = free._replace(
            weights=M @ free.weights,
            visible_centre=M @ free.visible_centre + c,
            visible_scale=log_cholesky(half @ half.mT),
        )
        return pack(moved)


def evenly_spaced(x: Floats, weights: Floats, n_hidden: int, index: int, rng: np.random.Generator) -> Lattice:
    """The start of a machine whose 2^Nh centres are spread evenly over the data.

    Hidden units start on {0, 1} (A = 10), with steps R/2, R/4, … along one axis, R the range of the data there. The
    first start deals more units to axes with more structure, the next ones put all on one axis, and then axes, units,
    stiffness and overlap are drawn at random.

    Parameters
    ----------
    x, weights : (n, Nv), (n,)
        Standardised data.
    index : int
        The number of the start.
    """
    d = x.shape[1]
    axes, deal, overlap, base = np.eye(d), _deal(x, weights, n_hidden), OVERLAP, 2.0
    stiffness = STIFFNESS
    centre = np.full(n_hidden, 0.5)
    if 1 <= index <= d and d > 1:
        deal = np.full(n_hidden, index - 1)
    elif index >= 1:
        axes, _ = np.linalg.qr(rng.standard_normal((d, d)))
        deal = rng.integers(0, d, n_hidden)
        stiffness *= float(np.exp(rng.uniform(math.log(0.4), math.log(2))))
        overlap = rng.uniform(0.6, 1.2)
        centre, base = rng.uniform(0.3, 0.7, n_hidden), rng.uniform(1.6, 2.4)
    used, low, high = np.unique(deal), np.zeros(d), np.zeros(d)
    along = x @ axes[:, used]
    low[used], high[used] = quantiles(along, weights, np.array([RANGE_TAIL, 1 - RANGE_TAIL]))
    high = np.maximum(high, low + 0.1)
    F, width, mean = np.zeros((d, n_hidden)), np.ones(d), np.zeros(d)
    for axis in range(d):
        mine = np.flatnonzero(deal == axis)
        if len(mine):
            steps = base ** -np.arange(1.0, len(mine) + 1)
            spacing = (high[axis] - low[axis]) / 2 ** len(mine)
            F[axis, mine] = steps / steps.sum() * (high[axis] - low[axis] - spacing)
            width[axis] = min(1.0, overlap * spacing)
            mean[axis] = (low[axis] + high[axis]) / 2 - F[axis] @ centre
    A = stiffness * np.eye(n_hidden)
    parts = A, -A @ centre, axes @ F, axes @ mean, axes @ np.diag(width**2) @ axes.T
    return Lattice(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))


def _deal(x: Floats, weights: Floats, n_hidden: int) -> np.ndarray:
    """The axis of each hidden unit: the one with most structure, which a unit makes a quarter of what it was."""
    left, axes = structure(x, weights), []
    for _ in range(n_hidden):
        axes.append(int(left.argmax()))
        left[axes[-1]] /= 4
    return np.array(axes)


@np.errstate(all="ignore")
def _fit_hidden(evaluation: Evaluation, total: float) -> tuple[Floats, Floats]:
    """L_A and centre of P(h) after a few damped Newton steps in (A, b); see `HiddenFamily`.

    The log-likelihood is concave there, and so is the prior. `total` is the number of observations.
    """
    machines, (K, g) = evaluation.machines, evaluation.machines.centre.shape
    counts = total * evaluation.sums.shares
    hidden = HiddenFamily(evaluation.states, RIGIDITY, STIFFNESS)
    observed, eye = (
        total * hidden.statistics_of(evaluation.sums.second, evaluation.sums.first),
        np.eye(hidden.n_scale + g),
    )
    A: Floats = machines.L_A @ machines.L_A.mT
    natural = hidden.natural(A)

    def evaluate(natural: Floats, A: Floats) -> tuple[Floats, Floats]:
        """The objective (K,), and P(h)."""
        log_sum, probabilities = hidden.probabilities(natural)
        return (observed * natural).sum(axis=1) - counts * log_sum - hidden.penalty(A), probabilities

    value, probabilities = evaluate(natural, A)
    for _ in range(NEWTON_STEPS):
        mean, covariance = hidden.moments(probabilities)
        gradient, information = observed - counts[:, None] * mean, counts[:, None, None] * covariance
        hidden.add_penalty_derivatives(A, gradient, information)
        damping = 1e-9 * information.diagonal(axis1=1, axis2=2).max(axis=1) + 1e-12
        step = np.linalg.solve(information + damping[:, None, None] * eye, gradient[:, :, None])[:, :, 0]
        size = np.ones(K)
        for _ in range(HALVINGS):  # of each machine's step, until it improves and changes A no more than tables allow
            candidate = natural + np.where(size[:, None] > 0, size[:, None] * step, 0.0)
            matrix = hidden.matrix(candidate)
            new, probabilities = evaluate(candidate, matrix)
            accepted = (np.linalg.eigvalsh(matrix - 0.5 * A)[:, 0] > 0) & (new >= value)
            if accepted.all():
                break
            size = np.where(accepted, size, np.where(size > 2e-3, 0.5 * size, 0.0))
        if not (accepted.all() and size.any()):
            break
        gain = float((new - value).max()) / total
        natural, A, value = candidate, matrix, new
        if gain < NEWTON_GAIN:
            break
    shift = np.linalg.solve(A, natural[:, hidden.n_scale :, None])[:, :, 0]
    return np.linalg.cholesky(A), machines.centre - shift


def _regression(evaluation: Evaluation, prior: Prior, total: float) -> tuple[Floats, Floats, Floats]:
    """F, mean and covariance of v given h: weighted least squares, and the prior's share in the covariance."""
    machines = evaluation.machines
    gram, cross, square = evaluation.moments()
    coefficients = cross @ np.linalg.pinv(gram, hermitian=True, rtol=1e-13)
    fitted = coefficients @ cross.mT
    residual = square - fitted - fitted.mT + coefficients @ gram @ coefficients.mT
    floor = np.diag(2 * prior.strength / total * prior.widths**2)
    covariance = (machines.L @ residual @ machines.L.mT + floor) / np.maximum(gram[:, -1:, -1:], 1e-300)
    change = machines.L @ coefficients
    F = machines.F + change[:, :, :-1]
    origin = machines.mean + (machines.F @ machines.centre[:, :, None])[:, :, 0] + change[:, :, -1]
    return F, origin - (F @ machines.centre[:, :, None])[:, :, 0], 0.5 * (covariance + covariance.mT)
