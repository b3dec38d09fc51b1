"""Mixtures of Riemann-Theta Boltzmann machines."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rtbm.distributions.base import VisibleDistribution
from rtbm.distributions.dense import DenseMachine
from rtbm.distributions.evaluator import DistributionEvaluator
from rtbm.distributions.integration.expectations import Component
from rtbm.distributions.rtbm import Machine, RTBMDistribution
from rtbm.errors import InvalidInputError
from rtbm.validation import as_real, check_device, check_vector


class MixtureEvaluator(DistributionEvaluator):
    """A weighted sum of densities, with log-weights (K,) and K machines."""

    log_weights: Tensor
    parts: Sequence[Machine]

    def __init__(self, log_weights: Tensor, parts: Sequence[Machine]):
        self.log_weights, self.parts = log_weights, parts

    def log_density(self, v: Tensor) -> Tensor:
        """log Σ_i p_i P_i(v) (n,)."""
        return self._log_terms(v).logsumexp(1)

    def log_marginal(self, v: Tensor, present: list[int]) -> Tensor:
        """log P (n,) of the coordinates `present`."""
        columns = [part.log_marginal(v, present) for part in self.parts]
        return (torch.stack(columns, 1) + self.log_weights).logsumexp(1)

    def log_mgf(self, t: Tensor) -> Tensor:
        """log E[exp(tᵀv)] (n,) for t (n, Nv)."""
        return (torch.stack([part.log_mgf(t) for part in self.parts], 1) + self.log_weights).logsumexp(1)

    def score_function(self, v: Tensor) -> Tensor:
        """∇_v log P(v) (n, Nv): the average of the components' score functions under P(component|v)."""
        scores = torch.stack([part.score_function(v) for part in self.parts], 1)
        return (self.responsibilities(v)[:, :, None] * scores).sum(1)

    def responsibilities(self, v: Tensor) -> Tensor:
        """P(component|v) (n, K)."""
        return self._log_terms(v).softmax(1)

    def _log_terms(self, v: Tensor) -> Tensor:
        """log p_i + log P_i(v) (n, K)."""
        return torch.stack([part.log_density(v) for part in self.parts], 1) + self.log_weights

    def mean(self) -> Tensor:
        """E[v] (Nv,)."""
        return self.log_weights.exp() @ self._means()

    def covariance(self) -> Tensor:
        """Cov[v] (Nv, Nv): the average covariance of the components, and the covariance of their means."""
        weights, means = self.log_weights.exp(), self._means()
        within = torch.stack([part.covariance() for part in self.parts])
        centred = means - weights @ means
        return torch.tensordot(weights, within, 1) + centred.mT @ (weights[:, None] * centred)

    def _means(self) -> Tensor:
        return torch.stack([part.mean() for part in self.parts])

    def condition(self, known: list[int], others: list[int], values: Tensor) -> "MixtureEvaluator":
        """The mixture of v[others] given v[known] = values: components that predict these well gain weight."""
        order = sorted(range(len(known)), key=known.__getitem__)
        row, present = values[order][None], sorted(known)
        evidence = torch.stack([part.log_marginal(row, present)[0] for part in self.parts])
        log_weights = (self.log_weights + evidence).log_softmax(0)
        return MixtureEvaluator(log_weights, [part.condition(known, others, values) for part in self.parts])

    def transform(self, M: Tensor, c: Tensor) -> "MixtureEvaluator":
        """The mixture of Mv + c."""
        return MixtureEvaluator(self.log_weights, [part.transform(M, c) for part in self.parts])

    def box(self, low: Tensor, high: Tensor) -> Tensor:
        """P(low < v < high) (n,)."""
        return torch.stack([part.box(low, high) for part in self.parts], 1) @ self.log_weights.exp()

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n independent draws (n, Nv): first of a component, then from that component."""
        if n == 0:
            return self.parts[0].sample(0, generator)
        chosen = torch.multinomial(self.log_weights.exp(), n, replacement=True, generator=generator)
        order = chosen.argsort(stable=True)
        counts = chosen.bincount(minlength=len(self.parts)).tolist()
        draws = [part.sample(count, generator) for part, count in zip(self.parts, counts, strict=True)]
        return torch.cat(draws)[order.argsort()]

    def components(self) -> list[Component]:
        """The components with their weights."""
        weights = self.log_weights.exp()
        return [c._replace(weight=w) for w, part in zip(weights, self.parts, strict=True) for c in part.components()]


class RTBMMixture(VisibleDistribution[MixtureEvaluator]):
    """A weighted sum of machines over the same visible units (the paper's equation for M(v))::

        M(v) = Σ_i p_i P_i(v)

    Parameters
    ----------
    weights : (K,)
        Probabilities p: not negative, with sum 1. Use `from_logits` for the paper's ω. A weight of exactly zero has no
        derivative, so it stays zero.
    components : sequence of K RTBMDistribution
        They may have different numbers of hidden units and different phases.

    Examples
    --------
    >>> left = RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [2.0], [0.0])
    >>> right = RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [-2.0], [0.0])
    >>> mixture = RTBMMixture([0.5, 0.5], [left, right])
    >>> mixture.mean.abs() < 1e-12, mixture.variance
    (tensor([True]), tensor([5.], dtype=torch.float64))
    >>> pair = [RTBMDistribution(torch.eye(2), torch.zeros(2, 1), [[1.0]], [b, 0.0], [0.0]) for b in (2.0, -2.0)]
    >>> RTBMMixture([0.5, 0.5], pair).conditional({0: 1.0}).weights.round(decimals=3)
    tensor([0.0180, 0.9820], dtype=torch.float64)
    """

    components: tuple[RTBMDistribution, ...]

    def __init__(self, weights: Any, components: Sequence[RTBMDistribution]):
        probabilities = as_real(weights, "weights")
        total = float(probabilities.detach().sum())
        if probabilities.numel() and (bool((probabilities.detach() < 0).any()) or abs(total - 1) > 1e-5):
            raise InvalidInputError(
                f"weights must be probabilities with sum 1, got sum {total:.6g} and smallest "
                f"{float(probabilities.detach().min()):.3g}: use RTBMMixture.from_logits for the ω of the paper"
            )
        positive = probabilities > 0
        logarithms = torch.where(positive, probabilities, 1.0).log()
        logits = torch.where(positive, logarithms, -torch.inf).double()
        self._set(logits.log_softmax(0), components, probabilities.dtype)

    @classmethod
    def from_logits(cls, logits: Any, components: Sequence[RTBMDistribution]) -> "RTBMMixture":
        """A mixture with weights softmax(ω), for any real ω (K,).

        Examples
        --------
        >>> part = RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [2.0], [0.0])
        >>> RTBMMixture.from_logits([1.0, 1.0], [part, part]).weights
        tensor([0.5000, 0.5000], dtype=torch.float64)
        """
        checked = as_real(logits, "logits")
        return cls._make(checked.double().log_softmax(0), components, checked.dtype)

    @classmethod
    def _make(cls, log_weights: Tensor, components: Sequence[RTBMDistribution], dtype: torch.dtype) -> "RTBMMixture":
        mixture = cls.__new__(cls)
        mixture._set(log_weights, components, dtype)
        return mixture

    def _set(self, log_weights: Tensor, components: Sequence[RTBMDistribution], dtype: torch.dtype) -> None:
        """`log_weights` (K,) are normalised: once more would change their last digits."""
        self.components = tuple(components) if isinstance(components, Iterable) else ()
        if not self.components or not all(isinstance(c, RTBMDistribution) for c in self.components):
            raise InvalidInputError(f"components must be a non-empty sequence of RTBMDistribution, got {components!r}")
        sizes = [c.n_visible for c in self.components]
        if len(set(sizes)) > 1:
            raise InvalidInputError(f"components must have the same number of visible units, got {sizes}")
        check_vector(log_weights, "weights", len(self.components))
        for component in self.components:
            check_device(log_weights, "weights", component.device)
        dtypes = (component.dtype for component in self.components)
        dtype = functools.reduce(torch.promote_types, dtypes, dtype)
        parts = [component._evaluator for component in self.components]
        evaluator = MixtureEvaluator(log_weights.double(), parts)
        VisibleDistribution.__init__(self, evaluator, sizes[0], dtype, log_weights.device)

    def __repr__(self) -> str:
        return f"RTBMMixture({len(self.components)} components, n_visible={self.n_visible}, dtype={self._dtype})"

    @property
    def weights(self) -> Tensor:
        """The probabilities of the components (K,)."""
        return self._evaluator.log_weights.exp().to(self._dtype)

    @property
    def logits(self) -> Tensor:
        """The logarithms of the weights (K,)."""
        return self._evaluator.log_weights.to(self._dtype, copy=True)

    def responsibilities(self, value: Any) -> Tensor:
        """P(component|v) (..., K) for v (..., Nv).

        Examples
        --------
        >>> part = RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [2.0], [0.0])
        >>> RTBMMixture([0.25, 0.75], [part, part]).responsibilities([0.3])
        tensor([0.2500, 0.7500], dtype=torch.float64)
        """
        return self._by_rows(self._evaluator.responsibilities, value)

    def hidden_mean(self, value: Any) -> Tensor:
        """E(h|v) of every component, one after the other (..., ΣNh), for v (..., Nv)."""
        return torch.cat([component.hidden_mean(value) for component in self.components], dim=-1)

    def to_phase(self, phase: str) -> "RTBMMixture":
        """The same density with natural parameters of every component in the given phase."""
        components = [component.to_phase(phase) for component in self.components]
        return self._make(self._evaluator.log_weights, components, self._dtype)

    def _dense_machines(self) -> tuple[Tensor, list[DenseMachine]]:
        return self._evaluator.log_weights, [part.as_dense() for part in self._evaluator.parts]

    def _derived(self, evaluator: MixtureEvaluator) -> "RTBMMixture":
        pairs = zip(self.components, evaluator.parts, strict=True)
        return self._make(evaluator.log_weights, [c._derived(part) for c, part in pairs], self._dtype)

    def _mapped(self, function: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None) -> "RTBMMixture":
        components = [component._mapped(function, dtype) for component in self.components]
        return self._make(function(self._evaluator.log_weights), components, dtype or self._dtype)
