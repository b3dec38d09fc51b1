"""The Riemann-Theta Boltzmann machine as a probability distribution."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rtbm.common import PHASES
from rtbm.distributions.arguments import (
    broadcast,
    check_indices,
    check_known,
    check_lattice,
    check_map,
    check_natural,
    check_points,
    check_reached,
    check_unconstrained,
)
from rtbm.distributions.caching import ordinary_tensors
from rtbm.distributions.continuous import ContinuousBoltzmannMachine
from rtbm.distributions.expectations import Estimate, Part
from rtbm.distributions.forms import Forms
from rtbm.distributions.visible import VisibleDistribution
from rtbm.errors import InvalidInputError
from rtbm.parameters import (
    Lattice,
    Natural,
    Unconstrained,
    change_phase,
    constrain,
    map_tensors,
    natural_to_lattice,
    unconstrain,
)
from rtbm.validation import (
    as_shape,
    check_choice,
    check_integer,
    check_integers,
    check_positive_definite,
    check_tolerance,
)


class RTBMDistribution(VisibleDistribution):
    """The density of the visible units of a Riemann-Theta Boltzmann machine (the paper's equation for P(v))::

        E(v, h) = ½vᵀTv + ½hᵀQh + vᵀWh + b_vᵀv + b_hᵀh,      v real, h integer

        P(v) = Σ_h exp(−E) / Z = N(v; −T⁻¹b_v, T⁻¹) · θ̃(Wᵀv + b_h|Q) / θ̃(b_h − WᵀT⁻¹b_v|Q − WᵀT⁻¹W)

    in phase I. In phase II, W and b_h stand for iW and ib_h. The parameters are copied; gradients flow to them.

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
    phase : "I" or "II"
        What W, Q and b_h mean. Every density has parameters in both phases, see `to_phase`.
    tolerance : float
        Bounds the relative truncation error of each theta function.

    Examples
    --------
    >>> machine = RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
    >>> machine.log_prob([[0.0], [1.0]])
    tensor([-2.1917, -2.1044], dtype=torch.float64)
    >>> machine.sample((3,), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([3, 1])
    >>> machine.to_phase("II")
    RTBMDistribution(n_visible=1, n_hidden=1, hidden='dense', phase='II', dtype=torch.float64)
    """

    def __init__(self, T: Any, W: Any, Q: Any, b_v: Any, b_h: Any, *, phase: str = "I", tolerance: float = 1e-12):
        check_choice(phase, "phase", PHASES)
        with ordinary_tensors():
            self._set_natural(*check_natural(T, W, Q, b_v, b_h, phase), tolerance)

    def _set_natural(self, natural: Natural, dtype: torch.dtype, tolerance: float) -> None:
        phase = natural.phase
        source: Lattice | Natural = natural
        if phase == "I" and natural.is_diagonal:
            source = change_phase(natural)
            check_positive_definite(source.T, "T − WQ⁻¹Wᵀ (with T, W, Q as given in phase I)")
        elif phase == "I":
            source = natural_to_lattice(natural)
            check_positive_definite(source.A, "Q − WᵀT⁻¹W (with T, W, Q as given in phase I)")
        self._set(Forms(source, phase, check_tolerance(tolerance), natural), dtype)

    @classmethod
    def from_natural(cls, natural: Natural, *, tolerance: float = 1e-12) -> "RTBMDistribution":
        """The machine of a tuple (T, W, Q, b_v, b_h, phase), such as the attribute `natural` of a machine."""
        return cls(*natural[:-1], phase=natural.phase, tolerance=tolerance)

    @classmethod
    def from_lattice(
        cls, A: Any, a: Any, F: Any, mean: Any, covariance: Any, *, phase: str = "I", tolerance: float = 1e-12
    ) -> "RTBMDistribution":
        """The machine with h ~ P(h) ∝ exp(−½hᵀAh − aᵀh) and v given h ~ N(mean + Fh, covariance).

        Any symmetric positive definite A (Nh, Nh) and covariance (Nv, Nv), and any a (Nh,), F (Nv, Nh) and mean (Nv,),
        will do. `phase` chooses the natural parameters that the machine shows, not its density.

        Examples
        --------
        >>> two_peaks = RTBMDistribution.from_lattice([[20.0]], [-10.0], [[4.0]], [-2.0], [[1.0]])
        >>> two_peaks.mean.abs() < 1e-12, two_peaks.variance.round(decimals=2)
        (tensor([True]), tensor([5.], dtype=torch.float64))
        """
        check_choice(phase, "phase", PHASES)
        lattice, dtype = check_lattice(A, a, F, mean, covariance)
        return cls._make(Forms(lattice, phase, check_tolerance(tolerance)), dtype)

    @classmethod
    def from_unconstrained(
        cls, free: Unconstrained, *, phase: str = "I", tolerance: float = 1e-12
    ) -> "RTBMDistribution":
        """The machine of free parameters, any real numbers; see `rtbm.parameters`.

        Examples
        --------
        >>> from rtbm.parameters import unpack
        >>> RTBMDistribution.from_unconstrained(unpack(torch.zeros(5), 1, 1))
        RTBMDistribution(n_visible=1, n_hidden=1, hidden='dense', phase='I', dtype=torch.float32)
        """
        check_choice(phase, "phase", PHASES)
        with ordinary_tensors():
            checked, dtype = check_unconstrained(free)
            machine = constrain(checked)
        check_reached(machine)
        return cls._make(Forms(machine, phase, check_tolerance(tolerance)), dtype)

    @classmethod
    def _make(cls, forms: Forms, dtype: torch.dtype) -> "RTBMDistribution":
        machine = cls.__new__(cls)
        machine._set(forms, dtype)
        return machine

    def _set(self, forms: Forms, dtype: torch.dtype) -> None:
        self._forms = forms
        VisibleDistribution.__init__(self, forms.shape[0], dtype, forms.source[0].device)

    def _derived(self, forms: Forms) -> "RTBMDistribution":
        return self._make(forms, self._dtype)

    def __repr__(self) -> str:
        return (
            f"RTBMDistribution(n_visible={self.n_visible}, n_hidden={self.n_hidden}, hidden={self.hidden!r}, "
            f"phase={self.phase!r}, dtype={self._dtype})"
        )

    @property
    def n_hidden(self) -> int:
        """The number of hidden units."""
        return self._forms.shape[1]

    @property
    def hidden(self) -> str:
        """Either "dense" or "diagonal", the form of Q."""
        return self._forms.hidden

    @property
    def phase(self) -> str:
        """Either "I" or "II", the phase of the natural parameters and of `hidden_mean`."""
        return self._forms.phase

    @property
    def tolerance(self) -> float:
        """The bound on the relative truncation error of each theta function."""
        return self._forms.tolerance

    @property
    def natural(self) -> Natural:
        """Copies of the paper's parameters (T, W, Q, b_v, b_h, phase) of this machine, in its phase."""
        return map_tensors(self._forms.natural, self._copy)

    @property
    def lattice(self) -> Lattice:
        """Copies of the parameters (A, a, F, mean, covariance) of the lattice form."""
        return map_tensors(self._forms.lattice, self._copy)

    @property
    def unconstrained(self) -> Unconstrained:
        """The free parameters of this machine; see `rtbm.parameters`."""
        return map_tensors(unconstrain(self._forms.source), self._copy)

    @property
    def T(self) -> Tensor:
        """The couplings of the visible units (Nv, Nv)."""
        return self.natural.T

    @property
    def W(self) -> Tensor:
        """The couplings between visible and hidden units (Nv, Nh)."""
        return self.natural.W

    @property
    def Q(self) -> Tensor:
        """The couplings of the hidden units (Nh, Nh), or (Nh,) if diagonal."""
        return self.natural.Q

    @property
    def b_v(self) -> Tensor:
        """The biases of the visible units (Nv,)."""
        return self.natural.b_v

    @property
    def b_h(self) -> Tensor:
        """The biases of the hidden units (Nh,)."""
        return self.natural.b_h

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
        check_choice(phase, "phase", PHASES)
        return self if phase == self.phase else self._derived(self._forms.in_phase(phase))

    def detach(self) -> "RTBMDistribution":
        """The same machine, cut from the graph of its parameters."""
        return self._derived(self._forms.mapped(torch.detach))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "RTBMDistribution":
        """The same machine on another device, or with results of another dtype (float32 or float64)."""
        if dtype not in (None, torch.float32, torch.float64):
            raise InvalidInputError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        return self._make(self._forms.mapped(lambda tensor: tensor.to(device)), dtype or self._dtype)

    def continuous_limit(self) -> ContinuousBoltzmannMachine:
        """The Gaussian that is left when the hidden units are real numbers instead of integers (phase I parameters)."""
        return ContinuousBoltzmannMachine._from_lattice(self.lattice)

    @property
    def mean(self) -> Tensor:
        """E[v] (Nv,)."""
        return self._forms.mean().to(self._dtype)

    @property
    def covariance_matrix(self) -> Tensor:
        """Cov[v] (Nv, Nv)."""
        return self._forms.covariance().to(self._dtype)

    @property
    def log_normalizer(self) -> Tensor:
        """log Z, with Z = ∫ Σ_h exp(−E(v, h)) dv in the natural parameters of this phase.

        Examples
        --------
        >>> RTBMDistribution([[1.0]], [[0.0]], [[100.0]], [0.0], [0.0]).log_normalizer  # ½ log 2π: only h = 0 counts
        tensor(0.9189, dtype=torch.float64)
        """
        return self._forms.log_normalizer().to(self._dtype)

    def free_energy(self, value: Any) -> Tensor:
        """F(v) = −log Σ_h exp(−E(v, h)) (...) for v (..., Nv), so that P = exp(−F)/Z; it needs no normaliser.

        Examples
        --------
        >>> machine = RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
        >>> bool((machine.log_prob([1.0]) + machine.free_energy([1.0]) + machine.log_normalizer).abs() < 1e-12)
        True
        """
        v = check_points(value, "value", self.n_visible, self._device)
        return self._shape(self._forms.free_energy(v.reshape(-1, self.n_visible)), v.shape[:-1], value)

    def estimate_log_normalizer(
        self, n_chains: int = 1000, n_steps: int = 500, generator: torch.Generator | None = None
    ) -> Estimate:
        """log Z by annealed importance sampling, with its standard error: for diagonal machines that are too large
        for the exact value.

        Parameters
        ----------
        n_chains : int
            Independent chains; the error falls with their square root.
        n_steps : int
            Steps from the machine with W = 0 to this one. Too few, or strong couplings W, make the error large, and
            then its estimate too small.
        generator : torch.Generator
            For repeatable results.

        Examples
        --------
        >>> machine = RTBMDistribution([[0.5]], [[0.9, 0.2]], [2.0, 1.0], [0.0], [0.3, 0.1])
        >>> value, error = machine.estimate_log_normalizer(generator=torch.Generator().manual_seed(0))
        >>> bool((value - machine.log_normalizer).abs() < 4 * error)
        True
        """
        if self.hidden == "dense":
            raise InvalidInputError(
                "estimate_log_normalizer needs a diagonal Q, given as a vector: there h given v is drawn unit by unit"
            )
        check_integer(n_chains, "n_chains", 2)
        check_integer(n_steps, "n_steps", 2)
        value, error = self._forms.annealed_log_normalizer(n_chains, n_steps, generator)
        return Estimate(value.to(self._dtype), error.to(self._dtype))

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
        v = check_points(value, "value", self.n_visible, self._device)
        mean = self._forms.hidden_mean(v.reshape(-1, self.n_visible))
        return self._shape(mean, (*v.shape[:-1], self.n_hidden), value)

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
            rows = states.reshape(-1, self.n_hidden)
            return self._shape(self._forms.hidden_log_prob(rows, None), states.shape[:-1], h)
        points = check_points(v, "v", self.n_visible, self._device)
        rows, given, shape = broadcast(states, points, "h and v")
        return self._shape(self._forms.hidden_log_prob(rows, given), shape, h, v)

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
        draws = self._forms.sample_joint(shape.numel(), generator)
        v, h = (part.to(self._dtype).reshape(*shape, part.shape[1]) for part in draws)
        return v, h

    def marginal(self, indices: int | Iterable[int]) -> "RTBMDistribution":
        """The distribution of the coordinates `indices`, in that order: again a machine with the same hidden units.

        A diagonal machine becomes a dense one, so this is for few hidden units; with many, `log_prob` integrates over
        entries that are NaN.

        Examples
        --------
        >>> machine = RTBMDistribution([[1.0, 0.2], [0.2, 2.0]], [[0.5], [0.1]], [[3.0]], [0.0, 0.0], [0.2])
        >>> machine.marginal(1)
        RTBMDistribution(n_visible=1, n_hidden=1, hidden='dense', phase='I', dtype=torch.float64)
        """
        chosen = check_indices(indices, self.n_visible)
        if not chosen:
            raise InvalidInputError("indices must name at least one coordinate")
        if chosen == list(range(self.n_visible)):
            return self
        selection = torch.eye(self.n_visible, dtype=torch.float64, device=self._device)[chosen]
        return self._derived(self._forms.transformed(selection, selection.new_zeros(len(chosen))))

    def conditional(self, values: Mapping[int, Any]) -> "RTBMDistribution":
        """The distribution of the other coordinates, in increasing order, given some: {index: value, …}.

        Examples
        --------
        >>> machine = RTBMDistribution([[1.0, 0.2], [0.2, 2.0]], [[0.5], [0.1]], [[3.0]], [0.0, 0.0], [0.2])
        >>> given = machine.conditional({0: 0.7}).log_prob([0.3]) + machine.marginal(0).log_prob([0.7])
        >>> bool((given - machine.log_prob([0.7, 0.3])).abs() < 1e-12)
        True
        """
        known, free, vector = check_known(values, self.n_visible, self._device)
        return self._derived(self._forms.conditioned(known, free, vector)) if known else self

    def affine(self, M: Any, c: Any = None) -> "RTBMDistribution":
        """The distribution of Mv + c, for M (n, Nv) of full row rank and c (n,): again a machine.

        A diagonal machine stays diagonal if M is square, else it becomes dense.

        Examples
        --------
        >>> machine = RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
        >>> moved = machine.affine([[2.0]], [1.0])
        >>> bool((moved.mean - (2 * machine.mean + 1)).abs() < 1e-12)
        True
        """
        return self._derived(self._forms.transformed(*check_map(M, c, self.n_visible, self._device)))

    def _needs_first_phase(self, method: str) -> None:
        if self.phase == "II":
            raise InvalidInputError(
                f"{method} needs phase I: in phase II the weights of the hidden states are complex numbers, not "
                'probabilities; the phase I machine with the same density is .to_phase("I")'
            )

    def _log_density(self, rows: Tensor) -> Tensor:
        return self._forms.log_density(rows)

    def _log_marginal(self, rows: Tensor, present: list[int]) -> Tensor:
        return self._forms.log_marginal(rows, present)

    def _score(self, rows: Tensor) -> Tensor:
        return self._forms.score(rows)

    def _log_mgf(self, rows: Tensor) -> Tensor:
        return self._forms.log_mgf(rows)

    def _box(self, low: Tensor, high: Tensor) -> Tensor:
        return self._forms.box(low, high)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        return self._forms.sample_joint(n, generator)[0]

    def _parts(self) -> list[Part]:
        return [Part(1.0, self._log_density, self._forms.envelope())]
