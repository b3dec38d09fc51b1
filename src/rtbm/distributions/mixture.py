"""Mixtures of Riemann-Theta Boltzmann machines."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rtbm.distributions.arguments import check_indices, check_known, check_points
from rtbm.distributions.expectations import Part
from rtbm.distributions.rtbm import RTBMDistribution
from rtbm.distributions.visible import VisibleDistribution
from rtbm.errors import InvalidInputError
from rtbm.validation import as_real, check_device, check_vector


class RTBMMixture(VisibleDistribution):
    """A weighted sum of machines over the same visible units (the paper's equation for M(v))::

        M(v) = Σ_i p_i P_i(v)

    Parameters
    ----------
    weights : (K,)
        Probabilities p: not negative, with sum 1. The paper's ω go through `from_logits`. A weight of exactly zero has
        no derivative here: it stays zero.
    components : sequence of K RTBMDistribution
        They may have different numbers of hidden units and different phases.

    Examples
    --------
    >>> left = RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [2.0], [0.0])
    >>> right = RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [-2.0], [0.0])
    >>> mixture = RTBMMixture([0.5, 0.5], [left, right])
    >>> mixture.mean.abs() < 1e-12, mixture.variance
    (tensor([True]), tensor([5.], dtype=torch.float64))
    """

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
        self._set(torch.where(positive, logarithms, -torch.inf), components, probabilities.dtype)

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
        return cls._make(checked.double(), components, checked.dtype)

    @classmethod
    def _make(cls, logits: Tensor, components: Sequence[RTBMDistribution], dtype: torch.dtype) -> "RTBMMixture":
        mixture = cls.__new__(cls)
        mixture._set(logits, components, dtype)
        return mixture

    def _set(self, logits: Tensor, components: Sequence[RTBMDistribution], dtype: torch.dtype) -> None:
        self.components = tuple(components) if isinstance(components, Iterable) else ()
        if not self.components or not all(isinstance(c, RTBMDistribution) for c in self.components):
            raise InvalidInputError(f"components must be a non-empty sequence of RTBMDistribution, got {components!r}")
        sizes = [c.n_visible for c in self.components]
        if len(set(sizes)) > 1:
            raise InvalidInputError(f"components must have the same number of visible units, got {sizes}")
        check_vector(logits, "weights", len(self.components))
        for component in self.components:
            check_device(logits, "weights", component.device)
        self._log_weights = logits.double().log_softmax(0)
        dtypes = (component.dtype for component in self.components)
        dtype = functools.reduce(torch.promote_types, dtypes, dtype)
        VisibleDistribution.__init__(self, sizes[0], dtype, logits.device)

    def __repr__(self) -> str:
        return f"RTBMMixture({len(self.components)} components, n_visible={self.n_visible}, dtype={self._dtype})"

    @property
    def weights(self) -> Tensor:
        """The probabilities of the components (K,)."""
        return self._log_weights.exp().to(self._dtype)

    @property
    def logits(self) -> Tensor:
        """The logarithms of the weights (K,)."""
        return self._log_weights.to(self._dtype, copy=True)

    @property
    def mean(self) -> Tensor:
        """E[v] (Nv,)."""
        return (self._log_weights.exp() @ self._means()).to(self._dtype)

    @property
    def covariance_matrix(self) -> Tensor:
        """Cov[v] (Nv, Nv): the average covariance of the components, and the covariance of their means."""
        weights, means = self._log_weights.exp(), self._means()
        within = torch.stack([component.covariance_matrix.double() for component in self.components])
        centred = means - weights @ means
        return (torch.tensordot(weights, within, 1) + centred.mT @ (weights[:, None] * centred)).to(self._dtype)

    def responsibilities(self, value: Any) -> Tensor:
        """P(component|v) (..., K) for v (..., Nv).

        Examples
        --------
        >>> part = RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [2.0], [0.0])
        >>> RTBMMixture([0.25, 0.75], [part, part]).responsibilities([0.3])
        tensor([0.2500, 0.7500], dtype=torch.float64)
        """
        v = check_points(value, "value", self.n_visible, self._device)
        posterior = self._responsibilities(v.reshape(-1, self.n_visible))
        return self._shape(posterior, (*v.shape[:-1], len(self.components)), value)

    def hidden_mean(self, value: Any) -> Tensor:
        """E(h|v) of every component, one after the other (..., ΣNh), for v (..., Nv)."""
        return torch.cat([component.hidden_mean(value) for component in self.components], dim=-1)

    def marginal(self, indices: int | Iterable[int]) -> "RTBMMixture":
        """The distribution of the coordinates `indices`, in that order."""
        chosen = check_indices(indices, self.n_visible)
        return self._map(lambda component: component.marginal(chosen))

    def conditional(self, values: Mapping[int, Any]) -> "RTBMMixture":
        """The distribution of the other coordinates given some: components that explain those gain weight.

        Examples
        --------
        >>> part = RTBMDistribution([[1.0, 0.0], [0.0, 1.0]], [[0.0], [0.0]], [[1.0]], [2.0, 0.0], [0.0])
        >>> other = RTBMDistribution([[1.0, 0.0], [0.0, 1.0]], [[0.0], [0.0]], [[1.0]], [-2.0, 0.0], [0.0])
        >>> RTBMMixture([0.5, 0.5], [part, other]).conditional({0: 1.0}).weights.round(decimals=3)
        tensor([0.0180, 0.9820], dtype=torch.float64)
        """
        known, _, vector = check_known(values, self.n_visible, self._device)
        if not known:
            return self
        order = sorted(range(len(known)), key=known.__getitem__)
        row, present = vector[order][None], sorted(known)
        evidence = torch.stack([component._log_marginal(row, present)[0] for component in self.components])
        return self._map(lambda component: component.conditional(values), self._log_weights + evidence)

    def affine(self, M: Any, c: Any = None) -> "RTBMMixture":
        """The distribution of Mv + c, for M (n, Nv) of full row rank and c (n,)."""
        return self._map(lambda component: component.affine(M, c))

    def to_phase(self, phase: str) -> "RTBMMixture":
        """The same density with natural parameters of every component in the given phase."""
        return self._map(lambda component: component.to_phase(phase))

    def detach(self) -> "RTBMMixture":
        """The same mixture, cut from the graph of its parameters."""
        return self._map(lambda component: component.detach(), self._log_weights.detach())

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "RTBMMixture":
        """The same mixture on another device, or with results of another dtype (float32 or float64)."""
        components = [component.to(device, dtype) for component in self.components]
        return self._make(self._log_weights.to(device), components, dtype or self._dtype)

    def _map(
        self, function: Callable[[RTBMDistribution], RTBMDistribution], logits: Tensor | None = None
    ) -> "RTBMMixture":
        logits = self._log_weights if logits is None else logits
        return self._make(logits, [function(component) for component in self.components], self._dtype)

    def _means(self) -> Tensor:
        return torch.stack([component.mean.double() for component in self.components])

    def _log_density(self, rows: Tensor) -> Tensor:
        return self._joint(component._log_density(rows) for component in self.components).logsumexp(1)

    def _log_marginal(self, rows: Tensor, present: list[int]) -> Tensor:
        return self._joint(component._log_marginal(rows, present) for component in self.components).logsumexp(1)

    def _log_mgf(self, rows: Tensor) -> Tensor:
        return self._joint(component._log_mgf(rows) for component in self.components).logsumexp(1)

    def _joint(self, columns: Iterable[Tensor]) -> Tensor:
        """log p_i + column_i (n, K)."""
        return torch.stack(list(columns), dim=1) + self._log_weights

    def _responsibilities(self, rows: Tensor) -> Tensor:
        return self._joint(component._log_density(rows) for component in self.components).softmax(1)

    def _score(self, rows: Tensor) -> Tensor:
        scores = torch.stack([component._score(rows) for component in self.components], dim=1)
        return (self._responsibilities(rows)[:, :, None] * scores).sum(1)

    def _box(self, low: Tensor, high: Tensor) -> Tensor:
        return torch.stack([component._box(low, high) for component in self.components], 1) @ self._log_weights.exp()

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        with torch.no_grad():
            draws = torch.empty(n, self.n_visible, dtype=torch.float64, device=self._device)
            if n:
                chosen = torch.multinomial(self._log_weights.exp(), n, replacement=True, generator=generator)
                for i, component in enumerate(self.components):
                    index = (chosen == i).nonzero()[:, 0]
                    draws[index] = component._sample(len(index), generator)
            return draws

    def _parts(self) -> list[Part]:
        weights = self._log_weights.exp()
        return [part._replace(weight=w) for w, c in zip(weights, self.components, strict=True) for part in c._parts()]
