"""The Riemann-Theta Boltzmann machine as a probability distribution."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rtbm.distributions.annealing import anneal
from rtbm.distributions.arguments import check_lattice, check_natural
from rtbm.distributions.caching import cached_with_graph
from rtbm.distributions.continuous import ContinuousBoltzmannMachine
from rtbm.distributions.grid import Envelope
from rtbm.distributions.grid_integrals import GridIntegrals
from rtbm.distributions.lattice_form import LatticeForm
from rtbm.distributions.visible import Estimate, VisibleDistribution, as_shape
from rtbm.distributions.wave_form import WaveForm
from rtbm.errors import InvalidInputError
from rtbm.parameters import (
    TWO_PI,
    Lattice,
    Natural,
    Unconstrained,
    change_phase,
    condition_lattice,
    condition_natural,
    constrain,
    lattice_to_natural,
    map_tensors,
    natural_to_lattice,
    solve,
    transform_lattice,
    transform_natural,
    unconstrain,
)
from rtbm.theta.plan import ThetaPlan
from rtbm.validation import (
    as_real,
    check_choice,
    check_device,
    check_finite,
    check_integers,
    check_positive_definite,
    check_tolerance,
    check_vector,
    check_vectors,
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
        check_choice(phase, "phase", ("I", "II"))
        natural, dtype = check_natural(T, W, Q, b_v, b_h, phase)
        source: Lattice | Natural = natural
        if natural.is_diagonal:
            if phase == "I":
                source = change_phase(natural)
                check_positive_definite(source.T, "T − WQ⁻¹Wᵀ (with T, W, Q as given in phase I)")
        elif phase == "I":
            source = natural_to_lattice(natural)
            check_positive_definite(source.A, "Q − WᵀT⁻¹W (with T, W, Q as given in phase I)")
        self._set(source, phase, dtype, tolerance, natural)

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
        check_choice(phase, "phase", ("I", "II"))
        lattice, dtype = check_lattice(A, a, F, mean, covariance)
        return cls._make(lattice, phase, dtype, tolerance)

    @classmethod
    def from_unconstrained(
        cls, free: Unconstrained, *, phase: str = "I", tolerance: float = 1e-12
    ) -> "RTBMDistribution":
        """The machine of free parameters, any real numbers; see `rtbm.parameters`."""
        check_choice(phase, "phase", ("I", "II"))
        machine = constrain(map_tensors(free, lambda part: part.double().clone()))
        for part in machine:
            if isinstance(part, Tensor):
                check_finite(part, "the machine of these free parameters")
        return cls._make(machine, phase, free.mean.dtype, tolerance)

    @classmethod
    def _make(cls, source: Lattice | Natural, phase: str, dtype: torch.dtype, tolerance: float) -> "RTBMDistribution":
        """A machine from checked float64 parameters: lattice form, or natural form in phase II."""
        machine = cls.__new__(cls)
        machine._set(source, phase, dtype, tolerance, None)
        return machine

    def _set(
        self,
        source: Lattice | Natural,
        phase: str,
        dtype: torch.dtype,
        tolerance: float,
        natural: Natural | None,
    ) -> None:
        self._source, self.phase, self._given = source, phase, natural
        self._tolerance = check_tolerance(tolerance)
        weights = source.W if isinstance(source, Natural) else source.F
        self._n_hidden = weights.shape[1]
        super().__init__(weights.shape[0], dtype, weights.device)

    def __repr__(self) -> str:
        return (
            f"RTBMDistribution(n_visible={self.n_visible}, n_hidden={self.n_hidden}, hidden={self.hidden!r}, "
            f"phase={self.phase!r}, dtype={self._dtype})"
        )

    # ------------------------------------------------------------------ parameters

    @property
    def n_hidden(self) -> int:
        """The number of hidden units."""
        return self._n_hidden

    @property
    def hidden(self) -> str:
        """The form of Q: "dense" or "diagonal"."""
        return "diagonal" if self._is_diagonal else "dense"

    @property
    def natural(self) -> Natural:
        """The paper's parameters (T, W, Q, b_v, b_h, phase) of this machine, in its phase."""
        return map_tensors(self._natural, self._cast)

    @property
    def lattice(self) -> Lattice:
        """The lattice form (A, a, F, mean, covariance) of this machine."""
        return map_tensors(self._lattice, self._cast)

    @property
    def unconstrained(self) -> Unconstrained:
        """The free parameters of this machine; see `rtbm.parameters`."""
        return map_tensors(unconstrain(self._source), self._cast)

    @property
    def tolerance(self) -> float:
        """The bound on the relative truncation error of each theta function."""
        return self._tolerance

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

    def to_phase(self, phase: str) -> "RTBMDistribution":
        """The same density with natural parameters in the given phase.

        Examples
        --------
        >>> machine = RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
        >>> other = machine.to_phase("II")
        >>> bool((other.log_prob([1.0]) - machine.log_prob([1.0])).abs() < 1e-12), other.Q
        (True, tensor([[19.7392]], dtype=torch.float64))
        """
        check_choice(phase, "phase", ("I", "II"))
        if phase == self.phase:
            return self
        source = self._source if self._is_diagonal or isinstance(self._source, Lattice) else self._lattice
        return self._make(source, phase, self._dtype, self._tolerance)

    def continuous_limit(self) -> ContinuousBoltzmannMachine:
        """The Gaussian that is left when the hidden units are real numbers instead of integers (phase I parameters)."""
        return ContinuousBoltzmannMachine.from_lattice(self.lattice)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype)

    @property
    def _is_diagonal(self) -> bool:
        return isinstance(self._source, Natural) and self._source.is_diagonal

    @cached_with_graph
    def _natural(self) -> Natural:
        if self._given is not None:
            return self._given
        if isinstance(self._source, Lattice):
            return lattice_to_natural(self._source, self.phase)
        return self._source if self.phase == "II" else change_phase(self._source)

    @cached_with_graph
    def _lattice(self) -> Lattice:
        return self._source if isinstance(self._source, Lattice) else natural_to_lattice(self._source)

    # ------------------------------------------------------------------ how things are computed

    @cached_with_graph
    def _form(self) -> LatticeForm | WaveForm:
        """Where the density comes from."""
        if isinstance(self._source, Lattice):
            return LatticeForm(self._source, self._tolerance)
        return WaveForm(self._source, self._tolerance)

    @cached_with_graph
    def _integrals(self) -> LatticeForm | GridIntegrals:
        """Where samples, moments and probabilities come from."""
        if isinstance(self._form, LatticeForm):
            return self._form
        if self._form.grid is not None:
            return GridIntegrals(self._form)
        return LatticeForm(self._lattice, self._tolerance)

    def _log_density(self, rows: Tensor) -> Tensor:
        return self._form.log_density(rows)

    def _score(self, rows: Tensor) -> Tensor:
        return self._form.score(rows)

    def _log_mgf(self, rows: Tensor) -> Tensor:
        return self._integrals.log_mgf(rows)

    def _box(self, low: Tensor, high: Tensor) -> Tensor:
        return self._integrals.box(low, high)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        return self._integrals.sample_joint(n, generator)[0]

    def _envelopes(self) -> list[tuple[VisibleDistribution, Tensor | float, Envelope]]:
        return [(self, 1.0, self._integrals.envelope())]

    def _log_marginal(self, rows: Tensor, present: list[int]) -> Tensor:
        if len(present) < self.n_visible and isinstance(self._integrals, GridIntegrals):
            return self._integrals.log_marginal(rows, present)
        return super()._log_marginal(rows, present)

    # ------------------------------------------------------------------ the public methods

    @property
    def mean(self) -> Tensor:
        """E[v] (Nv,)."""
        return self._integrals.mean().to(self._dtype)

    @property
    def covariance_matrix(self) -> Tensor:
        """Cov[v] (Nv, Nv)."""
        return self._integrals.covariance().to(self._dtype)

    @property
    def log_normalizer(self) -> Tensor:
        """log Z, with Z = ∫ Σ_h exp(−E(v, h)) dv in the natural parameters of this phase."""
        v = -solve(self._natural.T, self._natural.b_v[:, None]).mT
        return (-_free_energy(self._natural, v, self._tolerance) - self._form.log_density(v))[0].to(self._dtype)

    def free_energy(self, value: Any) -> Tensor:
        """F(v) = −log Σ_h exp(−E(v, h)) (...) for v (..., Nv), so that P = exp(−F)/Z; it needs no normaliser.

        Examples
        --------
        >>> machine = RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
        >>> bool((machine.log_prob([1.0]) + machine.free_energy([1.0]) + machine.log_normalizer).abs() < 1e-12)
        True
        """
        rows, shape, dtype = self._rows(value, "value")
        return _free_energy(self._natural, rows, self._tolerance).to(dtype).reshape(shape)

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
            Steps from the machine with W = 0 to this one. Too few make the error large, and then its estimate poor.
        generator : torch.Generator
            For repeatable results.

        Examples
        --------
        >>> machine = RTBMDistribution([[0.5]], [[0.9, 0.2]], [2.0, 1.0], [0.0], [0.3, 0.1])
        >>> value, error = machine.estimate_log_normalizer(generator=torch.Generator().manual_seed(0))
        >>> bool((value - machine.log_normalizer).abs() < 4 * error)
        True
        """
        if not self._is_diagonal:
            raise InvalidInputError(
                "estimate_log_normalizer needs a diagonal Q (a vector); for dense Q use log_normalizer"
            )
        image = self._natural if self.phase == "I" else change_phase(self._natural)
        value, error = anneal(image, n_chains, n_steps, generator, self._tolerance)
        if self.phase == "II":  # exp(−F)/Z is the same in both phases
            v = -solve(self._natural.T, self._natural.b_v[:, None]).mT
            ours, theirs = (_free_energy(natural, v, self._tolerance)[0] for natural in (self._natural, image))
            value = value + theirs - ours
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
        rows, shape, dtype = self._rows(value, "value")
        return self._form.hidden_mean(rows, self.phase).to(dtype).reshape(*shape, self.n_hidden)

    def hidden_log_prob(self, h: Any, v: Any = None) -> Tensor:
        """log P(h) (...), or log P(h|v) (...), for integers h (..., Nh) and v (..., Nv) that broadcast (phase I only).

        Examples
        --------
        >>> machine = RTBMDistribution([[1.0]], [[0.0]], [[10.0]], [0.0], [-5.0])  # h is 0 or 1 with equal odds
        >>> machine.hidden_log_prob([[0.0], [1.0]]).exp().round(decimals=4)
        tensor([0.5000, 0.5000], dtype=torch.float64)
        """
        self._needs_first_phase("hidden_log_prob")
        states = check_integers(check_vectors(as_real(h, "h"), "h", self.n_hidden), "h")
        check_device(states, "h", self._device)
        dtype = torch.promote_types(states.dtype, self._dtype)
        if v is None:
            flat = states.double().reshape(-1, self.n_hidden)
            return self._hidden_log_prob(flat, None).to(dtype).reshape(states.shape[:-1])
        rows, shape, v_dtype = self._rows(v, "v")
        try:
            full = torch.broadcast_shapes(states.shape[:-1], shape)
        except RuntimeError:
            raise InvalidInputError(
                f"h and v must have leading shapes that broadcast, got {tuple(states.shape[:-1])} and {tuple(shape)}"
            ) from None
        flat = states.double().expand(*full, self.n_hidden).reshape(-1, self.n_hidden)
        rows = rows.reshape(*shape, self.n_visible).expand(*full, self.n_visible).reshape(-1, self.n_visible)
        return self._hidden_log_prob(flat, rows).to(torch.promote_types(dtype, v_dtype)).reshape(full)

    def _hidden_log_prob(self, h: Tensor, v: Tensor | None) -> Tensor:
        if isinstance(self._form, LatticeForm):
            return self._form.hidden_log_prob(h, v)
        if v is not None:
            return self._form.hidden_log_prob(h, v)
        A, a, *_ = self._lattice
        centre = -solve(A, a[:, None])[:, 0]
        root = torch.linalg.cholesky(A)
        quadratic = 0.5 * ((h - centre) @ root).square().sum(1)
        return (
            root.diagonal().log().sum()
            - 0.5 * self.n_hidden * math.log(TWO_PI)
            - quadratic
            - self._form.log_normalizer()
        )

    def sample_joint(
        self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Independent exact draws of v, sample_shape + (Nv,), and h, sample_shape + (Nh,) (phase I only)."""
        self._needs_first_phase("sample_joint")
        shape = as_shape(sample_shape)
        v, h = self._integrals.sample_joint(shape.numel(), generator)
        return v.to(self._dtype).reshape(*shape, -1), h.to(self._dtype).reshape(*shape, -1)

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
        chosen = self._indices(indices)
        if not chosen:
            raise InvalidInputError("indices must name at least one coordinate")
        if chosen == list(range(self.n_visible)):
            return self
        selection = torch.eye(self.n_visible, dtype=torch.float64, device=self._device)[chosen]
        return self._transform(selection, selection.new_zeros(len(chosen)))

    def conditional(self, values: Mapping[int, Any]) -> "RTBMDistribution":
        """The distribution of the other coordinates, in increasing order, given some: {index: value, …}.

        Examples
        --------
        >>> machine = RTBMDistribution([[1.0, 0.2], [0.2, 2.0]], [[0.5], [0.1]], [[3.0]], [0.0, 0.0], [0.2])
        >>> given = machine.conditional({0: 0.7}).log_prob([0.3]) + machine.marginal(0).log_prob([0.7])
        >>> bool((given - machine.log_prob([0.7, 0.3])).abs() < 1e-12)
        True
        """
        known, free, vector = self._split(values)
        if not known:
            return self
        source: Lattice | Natural
        if isinstance(self._source, Natural):
            source = condition_natural(self._source, known, free, vector)
        else:
            source = condition_lattice(self._source, known, free, vector)
        return self._make(source, self.phase, self._dtype, self._tolerance)

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
        matrix = as_real(M, "M").double()
        check_device(matrix, "M", self._device)
        if matrix.ndim != 2 or matrix.shape[1] != self.n_visible or not 1 <= matrix.shape[0] <= self.n_visible:
            raise InvalidInputError(
                f"M must have shape (n, {self.n_visible}) with 1 ≤ n ≤ {self.n_visible}, got {tuple(matrix.shape)}"
            )
        if int(torch.linalg.matrix_rank(matrix.detach())) < len(matrix):
            raise InvalidInputError("M must have full row rank: the image would have no density")
        shift = matrix.new_zeros(len(matrix)) if c is None else check_vector(as_real(c, "c"), "c", len(matrix)).double()
        return self._transform(matrix, check_device(shift, "c", self._device))

    def _transform(self, M: Tensor, c: Tensor) -> "RTBMDistribution":
        source: Lattice | Natural
        if isinstance(self._source, Natural) and M.shape[0] == M.shape[1]:
            source = transform_natural(self._source, M, c)
        else:
            source = transform_lattice(self._lattice, M, c)
        return self._make(source, self.phase, self._dtype, self._tolerance)

    def _needs_first_phase(self, method: str) -> None:
        if self.phase == "II":
            raise InvalidInputError(
                f"{method} needs phase I: in phase II the weights of the hidden states are complex numbers, not "
                f'probabilities; the phase I machine with the same density is .to_phase("I")'
            )


def _free_energy(natural: Natural, rows: Tensor, tolerance: float) -> Tensor:
    T, W, Q, b_v, b_h, phase = natural
    plan = ThetaPlan(Q, phase=phase, tolerance=tolerance)
    return 0.5 * ((rows @ T) * rows).sum(1) + rows @ b_v - plan.log_theta(rows @ W + b_h)
