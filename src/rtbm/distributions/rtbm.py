"""The Riemann-Theta Boltzmann machine as a probability distribution."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, register_kl

from rtbm.common import PHASES
from rtbm.distributions.arguments import (
    broadcast,
    check_free,
    check_lattice,
    check_natural,
    check_points,
    check_reached,
    dtype_of,
)
from rtbm.distributions.base import VisibleDistribution
from rtbm.distributions.caching import cached_with_graph, forwarded, ordinary_tensors
from rtbm.distributions.continuous import ContinuousBoltzmannMachine
from rtbm.distributions.dense import DenseMachine
from rtbm.distributions.diagonal import DiagonalMachine
from rtbm.distributions.evaluator import explains_failures
from rtbm.errors import InvalidInputError
from rtbm.parameters import Free, Lattice, Natural, constrain, map_tensors, solve
from rtbm.theta.derivatives import Opaque, is_transforming, pullback
from rtbm.theta.plan import ThetaPlan
from rtbm.validation import as_shape, check_choice, check_integers, check_tolerance

Machine = DenseMachine | DiagonalMachine


class RTBMDistribution(VisibleDistribution[Machine]):
    """The density of the visible units of a Riemann-Theta Boltzmann machine (the paper's equation for P(v))::

        E(v, h) = ½vᵀTv + ½hᵀQh + vᵀWh + b_vᵀv + b_hᵀh,      v real, h integer

        P(v) = Σ_h exp(−E) / Z = N(v; −T⁻¹b_v, T⁻¹) · θ̃(Wᵀv + b_h|Q) / θ̃(b_h − WᵀT⁻¹b_v|Q − WᵀT⁻¹W)

    in phase I. In phase II, W and b_h stand for iW and ib_h. The parameters are copied, and gradients flow to them.

    Parameters
    ----------
    T : (Nv, Nv)
        Symmetric, positive definite.
    W : (Nv, Nh)
        Real in both phases.
    Q : (Nh, Nh) or (Nh,)
        Symmetric, positive definite; a vector is the diagonal of a diagonal matrix. In phase I, Q − WᵀT⁻¹W must be
        positive definite too.
    b_v, b_h : (Nv,), (Nh,)
        The biases.
    phase : "I" or "II", default="I"
        The meaning of W, Q and b_h. Every density has parameters in both phases; see `to_phase`.
    tolerance : float, default=1e-12
        Bounds the relative truncation error of each theta function.

    Examples
    --------
    >>> machine = RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
    >>> machine.log_prob([[0.0], [1.0]])
    tensor([-2.1917, -2.1044], dtype=torch.float64)
    >>> machine.sample((3,), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([3, 1])
    >>> machine.to_phase("II")
    RTBMDistribution(n_visible=1, n_hidden=1, coupling='dense', phase='II', dtype=torch.float64)
    """

    def __init__(self, T: Any, W: Any, Q: Any, b_v: Any, b_h: Any, *, phase: str = "I", tolerance: float = 1e-12):
        check_choice(phase, "phase", PHASES)
        with ordinary_tensors():
            natural, dtype = check_natural(T, W, Q, b_v, b_h, phase)
            kind = DiagonalMachine if natural.is_diagonal else DenseMachine
            self._set(kind.from_natural(natural, check_tolerance(tolerance)), phase, dtype, natural)

    @classmethod
    def from_natural(cls, natural: Natural, *, tolerance: float = 1e-12) -> "RTBMDistribution":
        """The machine of natural parameters (T, W, Q, b_v, b_h, phase), such as the attribute `natural` of a machine.

        Examples
        --------
        >>> machine = RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
        >>> RTBMDistribution.from_natural(machine.natural).Q
        tensor([[2.]], dtype=torch.float64)
        """
        return cls(*natural[:-1], phase=natural.phase, tolerance=tolerance)

    @classmethod
    def from_lattice(
        cls, A: Any, a: Any, F: Any, mean: Any, covariance: Any, *, phase: str = "I", tolerance: float = 1e-12
    ) -> "RTBMDistribution":
        """The machine with h ~ P(h) ∝ exp(−½hᵀAh − aᵀh) and v given h ~ N(mean + Fh, covariance).

        Parameters
        ----------
        A : (Nh, Nh)
            Symmetric, positive definite.
        a, F, mean : (Nh,), (Nv, Nh), (Nv,)
            Any real numbers.
        covariance : (Nv, Nv)
            Symmetric, positive definite.
        phase : "I" or "II", default="I"
            The phase of the natural parameters that the machine shows. The density does not depend on it.
        tolerance : float, default=1e-12
            Bounds the relative truncation error of each theta function.

        Examples
        --------
        >>> two_peaks = RTBMDistribution.from_lattice([[20.0]], [-10.0], [[4.0]], [-2.0], [[1.0]])
        >>> two_peaks.mean.abs() < 1e-12, two_peaks.variance.round(decimals=2)
        (tensor([True]), tensor([5.], dtype=torch.float64))
        """
        lattice, dtype = check_lattice(A, a, F, mean, covariance)
        return cls._make(DenseMachine(lattice, check_tolerance(tolerance)), phase, dtype)

    @classmethod
    def from_free(cls, free: Free, *, phase: str = "I", tolerance: float = 1e-12) -> "RTBMDistribution":
        """The machine of free parameters, which may be any real numbers; see `rtbm.parameters`.

        Examples
        --------
        >>> from rtbm.parameters import unpack
        >>> RTBMDistribution.from_free(unpack(torch.zeros(5), 1, 1))
        RTBMDistribution(n_visible=1, n_hidden=1, coupling='dense', phase='I', dtype=torch.float32)
        """
        if is_transforming():  # numbers are out of sight: log_prob checks them
            dtype, parameters = free.weights.dtype, constrain(map_tensors(free, Tensor.double))
        else:
            with ordinary_tensors():
                checked, dtype = check_free(free)
                parameters = constrain(checked)
            check_reached(parameters)
        check_tolerance(tolerance)
        if isinstance(parameters, Lattice):
            return cls._make(DenseMachine(parameters, tolerance), phase, dtype)
        return cls._make(DiagonalMachine(parameters, tolerance), phase, dtype)

    @classmethod
    def _make(cls, machine: Machine, phase: str, dtype: torch.dtype) -> "RTBMDistribution":
        check_choice(phase, "phase", PHASES)
        distribution = cls.__new__(cls)
        distribution._set(machine, phase, dtype)
        return distribution

    def _set(self, machine: Machine, phase: str, dtype: torch.dtype, given: Natural | None = None) -> None:
        """`given` are the natural parameters as the user gave them, which no rounding has changed."""
        self._phase, self._given = phase, given
        VisibleDistribution.__init__(self, machine, machine.n_visible, dtype, machine.device)

    def __repr__(self) -> str:
        return (
            f"RTBMDistribution(n_visible={self.n_visible}, n_hidden={self.n_hidden}, coupling={self.coupling!r}, "
            f"phase={self.phase!r}, dtype={self._dtype})"
        )

    def _log_prob_as_one_step(self, value: Any) -> Tensor:
        if not isinstance(value, Tensor) or value.shape[-1:] != self.event_shape:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InvalidInputError(f"value must be a tensor of shape (..., {self.n_visible}) here, got {got}")
        machine, rows = self._evaluator, value.double()
        if torch.compiler.is_compiling():
            result = _log_prob(rows, machine.parameters, machine.coupling, machine.tolerance)
        else:
            result = Opaque.apply(_log_prob_function(machine.coupling, machine.tolerance), rows, *machine.parameters)
        return result.to(dtype_of(value, self._dtype))

    n_hidden: int = forwarded("_evaluator.n_hidden", "The number of hidden units.")
    coupling: str = forwarded("_evaluator.coupling", 'Either "dense" or "diagonal", the shape of Q.')
    phase: str = forwarded("_phase", 'Either "I" or "II", the phase of the natural parameters and of `hidden_mean`.')
    tolerance: float = forwarded(
        "_evaluator.tolerance", "The bound on the relative truncation error of each theta function."
    )
    T: Tensor = forwarded("natural.T", "The couplings of the visible units (Nv, Nv).")
    W: Tensor = forwarded("natural.W", "The couplings between visible and hidden units (Nv, Nh).")
    Q: Tensor = forwarded("natural.Q", "The couplings of the hidden units (Nh, Nh), or (Nh,) if diagonal.")
    b_v: Tensor = forwarded("natural.b_v", "The biases of the visible units (Nv,).")
    b_h: Tensor = forwarded("natural.b_h", "The biases of the hidden units (Nh,).")

    @property
    def natural(self) -> Natural:
        """Copies of the paper's parameters (T, W, Q, b_v, b_h, phase), in the phase of this machine."""
        return map_tensors(self._natural, self._copy)

    @property
    def lattice(self) -> Lattice:
        """Copies of the lattice parameters (A, a, F, mean, covariance)."""
        return map_tensors(self._evaluator.lattice, self._copy)

    @property
    def free(self) -> Free:
        """The free parameters of this machine; see `rtbm.parameters`."""
        return map_tensors(self._evaluator.free(), self._copy)

    def _copy(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype, copy=True)

    def to_phase(self, phase: str) -> "RTBMDistribution":
        """The same density with natural parameters in the given phase.

        Examples
        --------
        >>> machine = RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
        >>> other = machine.to_phase("II")
        >>> bool((other.log_prob([1.0]) - machine.log_prob([1.0])).abs() < 1e-12), other.Q
        (True, tensor([[19.7392]], dtype=torch.float64))
        """
        return self if phase == self.phase else self._make(self._evaluator, phase, self._dtype)

    def _derived(self, evaluator: Machine) -> "RTBMDistribution":
        return self._make(evaluator, self._phase, self._dtype)

    def _mapped(self, function: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None) -> "RTBMDistribution":
        copy = self._make(self._evaluator.mapped(function), self._phase, dtype or self._dtype)
        copy._given = None if self._given is None else map_tensors(self._given, function)
        return copy

    def continuous_limit(self) -> ContinuousBoltzmannMachine:
        """The Gaussian that results if the hidden units of phase I are real numbers instead of integers."""
        return ContinuousBoltzmannMachine._from_lattice(self.lattice)

    @property
    def log_normalizer(self) -> Tensor:
        """log Z, with Z = ∫ Σ_h exp(−E(v, h)) dv in the natural parameters of this phase.

        Examples
        --------
        >>> RTBMDistribution([[1.0]], [[0.0]], [[100.0]], [0.0], [0.0]).log_normalizer  # ½ log 2π: only h = 0 counts
        tensor(0.9189, dtype=torch.float64)
        """
        v = self._origin()  # P = exp(−F)/Z at any point
        return -(self._free_energy(v) + self._evaluator.log_density(v))[0].to(self._dtype)

    def free_energy(self, value: Any) -> Tensor:
        """F(v) = −log Σ_h exp(−E(v, h)) (...) for v (..., Nv), so that P = exp(−F)/Z. It needs no normaliser.

        Examples
        --------
        >>> machine = RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
        >>> bool((machine.log_prob([1.0]) + machine.free_energy([1.0]) + machine.log_normalizer).abs() < 1e-12)
        True
        """
        return self._by_rows(self._free_energy, value)

    @explains_failures
    def _free_energy(self, rows: Tensor) -> Tensor:
        T, W, _, b_v, b_h, _ = self._natural
        quadratic = 0.5 * ((rows @ T) * rows).sum(1) + rows @ b_v
        return quadratic - self._free_energy_plan.log_theta(rows @ W + b_h)

    @cached_with_graph
    def _free_energy_plan(self) -> ThetaPlan:
        return ThetaPlan(self._natural.Q, phase=self._phase, tolerance=self.tolerance)

    @cached_with_graph
    def _natural(self) -> Natural:
        """The natural parameters in float64."""
        return self._evaluator.natural(self._phase) if self._given is None else self._given

    def _origin(self) -> Tensor:
        """The mean (1, Nv) of the Gaussian factor, where no term of log P is large."""
        return -solve(self._natural.T, self._natural.b_v[:, None]).mT

    def energy(self, v: Any, h: Any) -> Tensor:
        """E(v, h) = ½vᵀTv + ½hᵀQh + vᵀWh + b_vᵀv + b_hᵀh (...) for v (..., Nv) and integers h (..., Nh) (phase I only).

        Examples
        --------
        >>> machine = RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
        >>> machine.energy([2.0], [[0.0], [1.0]])
        tensor([1.0000, 4.1000], dtype=torch.float64)
        """
        points, states, shape = self._pairs(v, h, "energy")
        T, W, Q, b_v, b_h, _ = self._natural
        hidden = states * Q if Q.ndim == 1 else states @ Q
        energy = 0.5 * ((points @ T) * points).sum(1) + points @ b_v
        energy = energy + ((0.5 * hidden + points @ W + b_h) * states).sum(1)
        return self._shape(energy, shape, v, h)

    def joint_log_prob(self, v: Any, h: Any) -> Tensor:
        """log P(v, h) = −E(v, h) − log Z (...) for v (..., Nv) and integers h (..., Nh) that broadcast (phase I only).

        Examples
        --------
        >>> machine = RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
        >>> joint = machine.joint_log_prob([1.0], torch.arange(-20.0, 21.0)[:, None])
        >>> bool((joint.logsumexp(0) - machine.log_prob([1.0])).abs() < 1e-12)  # the sum over h is P(v)
        True
        """
        points, states, shape = self._pairs(v, h, "joint_log_prob")
        log_prob = self._evaluator.hidden_log_prob(states, None) + self._normals(states).log_prob(points)
        return self._shape(log_prob, shape, v, h)

    def visible_given(self, h: Any) -> MultivariateNormal:
        """P(v|h) for integers h (..., Nh): normal with mean −T⁻¹(b_v + Wh) and covariance T⁻¹ (phase I only).

        Examples
        --------
        >>> machine = RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
        >>> machine.visible_given([[0.0], [1.0]]).mean
        tensor([[ 0.0000],
                [-1.8000]], dtype=torch.float64)
        """
        self._needs_first_phase("visible_given")
        states = check_integers(check_points(h, "h", self.n_hidden, self._device), "h")
        normal = self._normals(states)
        return MultivariateNormal(
            normal.loc.to(self._dtype), scale_tril=normal.scale_tril.to(self._dtype), validate_args=False
        )

    def _normals(self, states: Tensor) -> MultivariateNormal:
        """P(v|h) in float64."""
        _, _, F, mean, covariance = self._evaluator.lattice
        return MultivariateNormal(mean + states @ F.mT, covariance, validate_args=False)

    def _pairs(self, v: Any, h: Any, method: str) -> tuple[Tensor, Tensor, Sequence[int]]:
        """Rows v (n, Nv) and h (n, Nh) of arguments that broadcast, and the shape of the results."""
        self._needs_first_phase(method)
        points = check_points(v, "v", self.n_visible, self._device)
        states = check_integers(check_points(h, "h", self.n_hidden, self._device), "h")
        return broadcast(points, states, "v and h")

    def hidden_mean(self, value: Any) -> Tensor:
        """E(h|v) (..., Nh) for v (..., Nv): the learned activation function (the paper's E(h_i|v))::

            phase I:   −∇_u log θ̃(u|Q),   u = Wᵀv + b_h        rises in steps
            phase II:  −∇_u log θ̃(iu|Q)                        periodic, rotated to the real axis as in the paper

        Examples
        --------
        >>> machine = RTBMDistribution([[1.0]], [[-1.0]], [[10.0]], [0.0], [0.0])
        >>> machine.hidden_mean([[0.0], [5.0], [10.0]])  # u = −v, and h steps from 0 to 1 where u = −5
        tensor([[0.0000],
                [0.5000],
                [1.0000]], dtype=torch.float64)
        """
        return self._by_rows(lambda rows: self._evaluator.hidden_mean(rows, self._phase), value)

    def hidden_log_prob(self, h: Any, v: Any = None) -> Tensor:
        """log P(h) (...), or log P(h|v) (...), for integers h (..., Nh) and v (..., Nv) that broadcast (phase I only).

        Examples
        --------
        >>> machine = RTBMDistribution([[1.0]], [[0.0]], [[10.0]], [0.0], [-5.0])  # h is 0 or 1 with equal odds
        >>> machine.hidden_log_prob([[0.0], [1.0]]).exp().round(decimals=4)
        tensor([0.5000, 0.5000], dtype=torch.float64)
        """
        self._needs_first_phase("hidden_log_prob")
        states = check_integers(check_points(h, "h", self.n_hidden, self._device), "h")
        if v is None:
            log_prob = self._evaluator.hidden_log_prob(states.reshape(-1, self.n_hidden), None)
            return self._shape(log_prob, states.shape[:-1], h)
        points = check_points(v, "v", self.n_visible, self._device)
        rows, given, shape = broadcast(states, points, "h and v")
        return self._shape(self._evaluator.hidden_log_prob(rows, given), shape, h, v)

    def sample_joint(
        self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Independent exact draws of v, sample_shape + (Nv,), and h, sample_shape + (Nh,) (phase I only).

        Examples
        --------
        >>> machine = RTBMDistribution([[1.0]], [[0.0]], [[10.0]], [0.0], [-5.0])  # h is 0 or 1 with equal odds
        >>> v, h = machine.sample_joint((1000,), generator=torch.Generator().manual_seed(0))
        >>> h.unique()
        tensor([0., 1.], dtype=torch.float64)
        """
        self._needs_first_phase("sample_joint")
        shape = as_shape(sample_shape)
        draws = self._evaluator.sample_joint(shape.numel(), generator)
        v, h = (part.to(self._dtype).reshape(*shape, part.shape[1]) for part in draws)
        return v, h

    def _dense_machines(self) -> tuple[Tensor, list[DenseMachine]]:
        return torch.zeros(1, dtype=torch.float64, device=self._device), [self._evaluator.as_dense()]

    def _needs_first_phase(self, method: str) -> None:
        if self.phase == "II":
            raise InvalidInputError(
                f"{method} needs phase I: in phase II the weights of the hidden states are complex numbers, not "
                'probabilities; the phase I machine with the same density is .to_phase("I")'
            )


@register_kl(MultivariateNormal, VisibleDistribution)
def _kl_from_normal(p: MultivariateNormal, q: VisibleDistribution[Any]) -> Tensor:
    if p.batch_shape or p.event_shape != q.event_shape:
        raise InvalidInputError(f"p must be one normal distribution over vectors of length {q.n_visible}, got {p!r}")
    one = torch.ones(1, 1, dtype=p.mean.dtype, device=p.mean.device)
    couplings = one.expand(q.n_visible, 1) * 0  # v does not depend on h
    return RTBMDistribution.from_lattice(one, one[0], couplings, p.mean, p.covariance_matrix).kl(q)


# log_prob as one step that torch.compile and torch.func do not look into: they hide the numbers that plans need.


def _log_prob_function(coupling: str, tolerance: float) -> Callable[..., Tensor]:
    """log P (...) as a function of rows (..., Nv) and of the `parameters` of a machine, which are checked."""
    kind: type[Machine] = DenseMachine if coupling == "dense" else DiagonalMachine

    def log_prob(rows: Tensor, *parameters: Tensor) -> Tensor:
        machine = kind.from_parameters(parameters, tolerance)
        check_reached(machine.checked)
        return RTBMDistribution._make(machine, "I", torch.float64).log_prob(rows)

    return log_prob


def _own(tensor: Tensor) -> Tensor:
    """A copy in the layout that the compiler expects. Results of an operator may not share memory with arguments."""
    return tensor.clone(memory_format=torch.contiguous_format)


@torch.library.custom_op("rtbm::log_prob", mutates_args=())
def _log_prob(rows: Tensor, parameters: list[Tensor], coupling: str, tolerance: float) -> Tensor:
    return _own(_log_prob_function(coupling, tolerance)(rows, *parameters))


@_log_prob.register_fake
def _(rows: Tensor, parameters: list[Tensor], coupling: str, tolerance: float) -> Tensor:
    return rows.new_empty(rows.shape[:-1])


@torch.library.custom_op("rtbm::log_prob_gradients", mutates_args=())
def _gradients(grad: Tensor, rows: Tensor, parameters: list[Tensor], coupling: str, tolerance: float) -> list[Tensor]:
    pulled = pullback(_log_prob_function(coupling, tolerance), 1 + len(parameters))
    stream = torch.cuda.current_stream(rows.device) if rows.is_cuda else None

    def run() -> list[Tensor]:
        with torch.no_grad(), torch.cuda.stream(stream), torch.autograd.set_multithreading_enabled(False):
            return [_own(part) for part in pulled(rows, *parameters, grad)]

    # Autograd is off in the thread of an operator, so this takes a new one. That must not ask autograd's own thread for
    # the GPU, which may be the one that waits here.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


@_gradients.register_fake
def _(grad: Tensor, rows: Tensor, parameters: list[Tensor], coupling: str, tolerance: float) -> list[Tensor]:
    return [torch.empty_like(part, memory_format=torch.contiguous_format) for part in (rows, *parameters)]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, parameters, ctx.coupling, ctx.tolerance = inputs
    ctx.save_for_backward(rows, *parameters)


def _backward(ctx: Any, grad: Tensor) -> Any:
    rows, *parameters = ctx.saved_tensors
    by_rows, *by_parameters = _gradients(grad, rows, parameters, ctx.coupling, ctx.tolerance)
    return by_rows, by_parameters, None, None


_log_prob.register_autograd(_backward, setup_context=_setup)
