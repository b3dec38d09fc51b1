"""One machine in all its forms, each made when it is first needed."""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from rtbm.distributions.annealing import anneal
from rtbm.distributions.caching import cached_with_graph
from rtbm.distributions.grid_integrals import GridIntegrals
from rtbm.distributions.lattice_form import LatticeForm
from rtbm.distributions.wave_form import WaveForm
from rtbm.errors import NormalizerError, NotPositiveDefiniteError, TooManyTermsError
from rtbm.parameters import (
    TWO_PI,
    Lattice,
    Natural,
    change_phase,
    condition_lattice,
    condition_natural,
    lattice_to_natural,
    map_tensors,
    natural_to_lattice,
    solve,
    transform_lattice,
    transform_natural,
)
from rtbm.theta.plan import ThetaPlan

Result = TypeVar("Result")


def explained(method: Callable[..., Result]) -> Callable[..., Result]:
    """Turn failures of sums and factorisations into errors that speak of the machine."""

    @wraps(method)
    def call(self: "Forms", *arguments: Any) -> Result:
        try:
            return method(self, *arguments)
        except TooManyTermsError as error:
            if type(error) is not TooManyTermsError:
                raise
            raise NormalizerError(error.terms, error.limit, *self.shape, self.hidden) from None
        except torch.linalg.LinAlgError as error:
            raise NotPositiveDefiniteError(
                f"the parameters of this machine are too far apart for float64 ({error}): a matrix is singular to "
                "working precision; rescale the units, or keep the optimiser from going so far"
            ) from None

    return call


class Forms:
    """The parameters of a machine, the forms that follow from them, and everything computed from these forms.

    The source is a lattice form, or a natural form in phase II: those determine the density without cancellation.
    `phase` says in which phase the natural parameters are shown, and `given` holds them as the user gave them.
    """

    def __init__(self, source: Lattice | Natural, phase: str, tolerance: float, given: Natural | None = None):
        self.source, self.phase, self.tolerance, self._given = source, phase, tolerance, given

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of visible and hidden units."""
        n_visible, n_hidden = (self.source.W if isinstance(self.source, Natural) else self.source.F).shape
        return n_visible, n_hidden

    @property
    def hidden(self) -> str:
        """Either "dense" or "diagonal", the form of Q."""
        return "diagonal" if isinstance(self.source, Natural) and self.source.is_diagonal else "dense"

    @cached_with_graph
    def natural(self) -> Natural:
        """The natural parameters in this phase."""
        if self._given is not None:
            return self._given
        if isinstance(self.source, Lattice):
            return lattice_to_natural(self.source, self.phase)
        return self.source if self.phase == "II" else change_phase(self.source)

    @cached_with_graph
    def lattice(self) -> Lattice:
        """The lattice form."""
        return self.source if isinstance(self.source, Lattice) else natural_to_lattice(self.source)

    @cached_with_graph
    def _density(self) -> LatticeForm | WaveForm:
        """Where the density comes from."""
        if isinstance(self.source, Lattice):
            return LatticeForm(self.source, self.tolerance)
        return WaveForm(self.source, self.tolerance)

    @cached_with_graph
    def _integrals(self) -> LatticeForm | GridIntegrals:
        """Where samples, moments and probabilities come from."""
        if isinstance(self._density, LatticeForm):
            return self._density
        if self._density.grid is not None:
            self._density.log_normalizer()  # which may find that the grid would have to be too large
        if self._density.grid is not None:
            return GridIntegrals(self._density)
        return LatticeForm(natural_to_lattice(self._density.reduced_natural()), self.tolerance)

    @cached_with_graph
    def _free_energy_plan(self) -> ThetaPlan:
        return ThetaPlan(self.natural.Q, phase=self.phase, tolerance=self.tolerance)

    def in_phase(self, phase: str) -> "Forms":
        """The same density with natural parameters in the given phase."""
        source = self.lattice if self.hidden == "dense" else self.source
        return Forms(source, phase, self.tolerance)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "Forms":
        """The same machine with a function applied to all tensors."""
        given = None if self._given is None else map_tensors(self._given, function)
        source: Lattice | Natural
        if isinstance(self.source, Natural):
            source = map_tensors(self.source, function)
        else:
            source = map_tensors(self.source, function)
        return Forms(source, self.phase, self.tolerance, given)

    @explained
    def conditioned(self, known: list[int], free: list[int], values: Tensor) -> "Forms":
        """v_free given v_known."""
        source: Lattice | Natural
        if isinstance(self.source, Natural):
            source = condition_natural(self.source, known, free, values)
        else:
            source = condition_lattice(self.source, known, free, values)
        return Forms(source, self.phase, self.tolerance)

    @explained
    def transformed(self, M: Tensor, c: Tensor) -> "Forms":
        """Mv + c."""
        source: Lattice | Natural
        if isinstance(self.source, Natural) and M.shape[0] == M.shape[1]:
            source = transform_natural(self.source, M, c)
        else:
            source = transform_lattice(self.lattice, M, c)
        return Forms(source, self.phase, self.tolerance)

    @explained
    def log_density(self, rows: Tensor) -> Tensor:
        """log P (n,)."""
        return self._density.log_density(rows)

    @explained
    def log_marginal(self, rows: Tensor, present: list[int]) -> Tensor:
        """log P (n,) of some coordinates alone."""
        if isinstance(self._integrals, GridIntegrals):
            return self._integrals.log_marginal(rows, present)
        selection = torch.eye(self.shape[0], dtype=rows.dtype, device=rows.device)[present]
        return self.transformed(selection, selection.new_zeros(len(present))).log_density(rows)

    @explained
    def score(self, rows: Tensor) -> Tensor:
        """∇ log P (n, Nv)."""
        return self._density.score(rows)

    @explained
    def hidden_mean(self, rows: Tensor) -> Tensor:
        """E(h|v) (n, Nh) in this phase."""
        return self._density.hidden_mean(rows, self.phase)

    @explained
    def hidden_log_prob(self, h: Tensor, v: Tensor | None) -> Tensor:
        """log P(h) or log P(h|v) (n,) of the phase I units."""
        if isinstance(self._density, LatticeForm):
            return self._density.hidden_log_prob(h, v)
        if v is not None:
            return self._density.hidden_log_prob(h, v)
        A, a, *_ = self.lattice
        centre, root = -solve(A, a[:, None])[:, 0], torch.linalg.cholesky(A)
        log_volume = 0.5 * len(a) * math.log(TWO_PI) - root.diagonal().log().sum()
        return -0.5 * ((h - centre) @ root).square().sum(1) - log_volume - self._density.log_normalizer()

    @explained
    def free_energy(self, rows: Tensor) -> Tensor:
        """−log Σ_h exp(−E) (n,) in the natural parameters."""
        T, W, _, b_v, b_h, _ = self.natural
        quadratic = 0.5 * ((rows @ T) * rows).sum(1) + rows @ b_v
        return quadratic - self._free_energy_plan.log_theta(rows @ W + b_h)

    @explained
    def log_normalizer(self) -> Tensor:
        """log Z, from exp(−F)/Z = P at one point."""
        v = self._origin()
        return -(self.free_energy(v) + self.log_density(v))[0]

    @explained
    def annealed_log_normalizer(
        self, n_chains: int, n_steps: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """An estimate of log Z and its standard error, for a diagonal machine."""
        first = self if self.phase == "I" else self.in_phase("I")
        value, error = anneal(first.natural, n_chains, n_steps, generator, self.tolerance)
        v = self._origin()  # exp(−F)/Z is the same in both phases
        return value + (first.free_energy(v) - self.free_energy(v))[0], error

    def _origin(self) -> Tensor:
        return -solve(self.natural.T, self.natural.b_v[:, None]).mT

    @explained
    def mean(self) -> Tensor:
        """E[v] (Nv,)."""
        return self._integrals.mean()

    @explained
    def covariance(self) -> Tensor:
        """Cov[v] (Nv, Nv)."""
        return self._integrals.covariance()

    @explained
    def log_mgf(self, rows: Tensor) -> Tensor:
        """log E[exp(tᵀv)] (n,)."""
        return self._integrals.log_mgf(rows)

    @explained
    def box(self, low: Tensor, high: Tensor) -> Tensor:
        """P(low < v < high) (n,)."""
        return self._integrals.box(low, high)

    @explained
    def sample_joint(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """n draws of v (n, Nv) and of the phase I units h (n, Nh)."""
        return self._integrals.sample_joint(n, generator)

    @explained
    def envelope(self) -> Any:
        """A bound of the density, and its finest detail."""
        return self._integrals.envelope()
