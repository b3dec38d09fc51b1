"""What a density over visible units must be able to compute: the interface of dense and diagonal machines and mixtures.

Arguments and results are float64 tensors on one device. Rows v (n, Nv) are finite and checked by the caller.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from rtbm.distributions.integration.expectations import Component
from rtbm.distributions.integration.grid import Envelope
from rtbm.errors import NormalizerError, NotPositiveDefiniteError, TooManyNodesError, TooManyTermsError

Result = TypeVar("Result")


class DistributionEvaluator(ABC):
    """Density, samples and moments of the visible units."""

    @abstractmethod
    def log_density(self, v: Tensor) -> Tensor:
        """log P(v) (n,)."""

    @abstractmethod
    def log_marginal(self, v: Tensor, present: list[int]) -> Tensor:
        """log P (n,) of the coordinates `present`, in increasing order, at v (n, len(present))."""

    @abstractmethod
    def score_function(self, v: Tensor) -> Tensor:
        """∇_v log P(v) (n, Nv)."""

    @abstractmethod
    def condition(self, known: list[int], others: list[int], values: Tensor) -> Any:
        """The evaluator of v[others] given v[known] = values."""

    @abstractmethod
    def transform(self, M: Tensor, c: Tensor) -> Any:
        """The evaluator of Mv + c, for M (n, Nv) of full row rank."""

    @abstractmethod
    def mean(self) -> Tensor:
        """E[v] (Nv,)."""

    @abstractmethod
    def covariance(self) -> Tensor:
        """Cov[v] (Nv, Nv)."""

    @abstractmethod
    def log_mgf(self, t: Tensor) -> Tensor:
        """log E[exp(tᵀv)] (n,) for t (n, Nv)."""

    @abstractmethod
    def box(self, low: Tensor, high: Tensor) -> Tensor:
        """P(low < v < high) (n,) for low ≤ high (n, Nv), which may be infinite."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n independent draws (n, Nv)."""

    @abstractmethod
    def components(self) -> list[Component]:
        """The components of the mixture, each with an envelope. A machine has one."""


class Machine(DistributionEvaluator):
    """What `DenseMachine` and `DiagonalMachine` share. Both have the same methods, also for the hidden units.

    Hidden states h are those of phase I, integers with probabilities, except where `phase` says otherwise.
    """

    coupling: ClassVar[str]
    n_visible: int
    n_hidden: int
    device: torch.device
    tolerance: float

    def __init_subclass__(cls) -> None:
        """Let every public method explain its failures."""
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(cls, name, explains_failures(method))

    @abstractmethod
    def sample_joint(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """n independent draws of v (n, Nv) and h (n, Nh)."""

    @abstractmethod
    def envelope(self) -> Envelope:
        """A Gaussian bound on the density, and the covariance of its finest detail."""

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n independent draws (n, Nv)."""
        return self.sample_joint(n, generator)[0]

    def components(self) -> list[Component]:
        """The machine itself, with weight 1."""
        return [Component(1.0, self.log_density, self.envelope())]


@contextmanager
def explained(n_visible: int, n_hidden: int, coupling: str) -> Iterator[None]:
    """Turn failures of sums and factorisations into errors that describe the machine and say what to do."""
    try:
        yield
    except TooManyTermsError as error:
        if isinstance(error, TooManyNodesError):
            raise
        raise NormalizerError(error.terms, error.limit, n_visible, n_hidden, coupling) from None
    except torch.linalg.LinAlgError as error:
        raise NotPositiveDefiniteError(
            f"the parameters of this machine are too far apart for float64 ({error}): a matrix is singular to "
            "working precision; rescale the units, or keep the optimiser from going so far"
        ) from None


def explains_failures(method: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate a method of an object with n_visible, n_hidden and coupling by `explained`."""

    @wraps(method)
    def call(self: Any, *arguments: Any) -> Result:
        with explained(self.n_visible, self.n_hidden, self.coupling):
            return method(self, *arguments)

    return call
