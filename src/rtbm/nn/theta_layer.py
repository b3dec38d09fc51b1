"""A neural network layer with learned activation functions: the expectations E(h|v) of a machine."""

import contextlib
import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from rtbm.common import PHASES
from rtbm.distributions import RTBMDistribution
from rtbm.errors import InvalidInputError
from rtbm.nn.activation import theta_unit, theta_units
from rtbm.parameters import COUPLINGS, from_log_cholesky, log_cholesky
from rtbm.validation import check_choice, check_integer, check_tolerance

LAYER_INITIALIZATIONS = ("balanced", "paper")
"""The names of initial distributions; see `ThetaLayer`."""
BALANCED_RANGE = {"I": (3.0, 9.0), "II": (0.5, 0.8)}
"""The range of initial q of "balanced" layers. In phase I, larger q make the ripple stronger than the trend; smaller q
make the unit linear. In phase II, q must stay below 1.5 for outputs of mean square 1."""
PAPER_RANGE = (2.0, 18.0)
"""The range of initial q in the paper. Another range no longer reproduces its networks."""


class ThetaLayer(nn.Module):
    """A layer of units E(h|v), which replaces a linear map with a fixed nonlinearity (the paper's section 4)::

        u = W v + b,    E(h|v) = −∇_u log θ̃(u|Q)  (phase I),    −∇_u log θ̃(iu|Q)  (phase II)

    The weights, the biases and Q are learned. Q is stored as logarithms, so every step of an optimiser leaves it
    positive definite.

    Parameters
    ----------
    in_features, out_features : int
        The numbers of inputs and units.
    coupling : "diagonal" or "dense", default="diagonal"
        "diagonal": every unit has a q of its own, and costs as much as a few tanh. "dense": one Q couples all units,
        which is affordable for up to about ten units.
    phase : "I" or "II", default="I"
        "I": E(h|v) is a linear trend plus a ripple. "II": E(h|v) is periodic.
    initialization : "balanced" or "paper", default="balanced"
        "balanced": inputs of variance 1 give outputs of mean square 1, unit by unit, so the signal keeps its size in
        stacked layers. "paper": q uniform in [2, 18], weights and biases as in torch.nn.Linear.
    dropout : float, default=0.0
        The probability with which an output is set to 0 during training. The others are scaled up.
    tolerance : float, default=1e-12
        Bounds the relative truncation error of theta functions of a dense Q.
    generator : torch.Generator, default=None
        For repeatable initial values.
    device, dtype : default=None
        As in every torch module.

    Attributes
    ----------
    weight : (out_features, in_features)
        The paper's W, transposed as in torch.nn.Linear.
    bias : (out_features,)
        The paper's b_h.
    hidden_scale : (out_features,) or (out_features · (out_features + 1) / 2,)
        log q, or the log-Cholesky vector of Q.

    Notes
    -----
    Under autocast the layer computes in the dtype of its parameters. A rounded argument would lose its position within
    a period.

    Examples
    --------
    >>> network = torch.nn.Sequential(ThetaLayer(1, 3), torch.nn.Linear(3, 1))
    >>> network(torch.zeros(5, 1)).shape
    torch.Size([5, 1])
    >>> sum(parameter.numel() for parameter in network[0].parameters())
    9
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        coupling: str = "diagonal",
        phase: str = "I",
        initialization: str = "balanced",
        dropout: float = 0.0,
        tolerance: float = 1e-12,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.in_features: int = check_integer(in_features, "in_features", 1)
        self.out_features: int = check_integer(out_features, "out_features", 1)
        self.coupling: str = check_choice(coupling, "coupling", COUPLINGS)
        self.phase: str = check_choice(phase, "phase", PHASES)
        self.initialization: str = check_choice(initialization, "initialization", LAYER_INITIALIZATIONS)
        self.dropout: float = check_probability(dropout, "dropout")
        self.tolerance: float = check_tolerance(tolerance)
        if dtype is not None and not dtype.is_floating_point:
            raise InvalidInputError(f"dtype must be a real floating point type, got {dtype}")
        n_scale = out_features if coupling == "diagonal" else out_features * (out_features + 1) // 2
        self.weight, self.bias, self.hidden_scale = (
            nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            for shape in ((out_features, in_features), (out_features,), (n_scale,))
        )
        self.reset_parameters(generator)

    @classmethod
    def from_distribution(cls, distribution: RTBMDistribution, **options: Any) -> "ThetaLayer":
        """The layer that computes the hidden expectations of a machine, `distribution.hidden_mean`.

        Options are those of the class, except `coupling` and `phase`, which come from the machine.

        Examples
        --------
        >>> machine = RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
        >>> layer, v = ThetaLayer.from_distribution(machine), torch.ones(4, 1, dtype=torch.float64)
        >>> torch.allclose(layer(v), machine.hidden_mean(v))
        True
        """
        if not isinstance(distribution, RTBMDistribution):
            raise InvalidInputError(f"distribution must be an RTBMDistribution, got a {type(distribution).__name__}")
        if {"coupling", "phase"} & set(options):
            raise InvalidInputError("options must not hold coupling or phase: both come from the distribution")
        settings: dict[str, Any] = {
            "coupling": distribution.coupling,
            "phase": distribution.phase,
            "tolerance": distribution.tolerance,
            "dtype": distribution.dtype,
            "device": distribution.device,
        }
        layer = cls(distribution.n_visible, distribution.n_hidden, **(settings | options))
        natural = distribution.natural
        with torch.no_grad():
            layer.weight.copy_(natural.W.mT)
            layer.bias.copy_(natural.b_h)
            layer.hidden_scale.copy_(natural.Q.log() if natural.is_diagonal else log_cholesky(natural.Q))
        return layer

    @property
    def Q(self) -> Tensor:
        """The paper's Q: its diagonal (out_features,), or the matrix (out_features, out_features)."""
        if self.coupling == "diagonal":
            return self.hidden_scale.exp()
        with _full_precision(self.hidden_scale):
            return from_log_cholesky(self.hidden_scale)

    def forward(self, v: Tensor) -> Tensor:
        """E(h|v) for inputs (..., in_features). Returns (..., out_features)."""
        with _full_precision(v):
            u = nn.functional.linear(v.to(self.weight.dtype), self.weight, self.bias)
            return nn.functional.dropout(self.activation(u), self.dropout, self.training)

    def activation(self, u: Tensor) -> Tensor:
        """E(h|v) as a function of u = Wv + b (..., out_features)."""
        if self.coupling == "diagonal":
            return theta_unit(u, self.Q, self.phase)
        return theta_units(u, self.Q, self.phase, self.tolerance)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw initial values from the distribution named by `initialization`."""
        if self.weight.is_meta:
            return
        n, m = self.out_features, self.in_features
        device = self.weight.device if generator is None else generator.device
        options: dict[str, Any] = {"dtype": torch.float64, "device": device, "generator": generator}
        low, high = BALANCED_RANGE[self.phase] if self.initialization == "balanced" else PAPER_RANGE
        q = low + (high - low) * torch.rand(n, **options)
        if self.initialization == "balanced":
            weight, bias = balanced_gain(q, self.phase)[:, None] * torch.randn(n, m, **options), torch.zeros(n)
        else:
            weight, bias = 2 * torch.rand(n, m, **options) - 1, (2 * torch.rand(n, **options) - 1) / m**0.5
        self.weight.copy_(weight / m**0.5)
        self.bias.copy_(bias)
        self.hidden_scale.copy_(q.log() if self.coupling == "diagonal" else log_cholesky(q.diag()))

    def get_extra_state(self) -> Tensor:
        """Coupling and phase as numbers, since the shapes of the parameters do not determine them."""
        return torch.tensor(self._kind(), dtype=torch.uint8, device="cpu")

    def _kind(self) -> list[int]:
        return [COUPLINGS.index(self.coupling), PHASES.index(self.phase)]

    def set_extra_state(self, state: Tensor) -> None:
        """Check that a state dict belongs to a layer of this coupling and phase."""
        if not isinstance(state, Tensor) or state.tolist() != self._kind():
            raise InvalidInputError(
                "the state belongs to a layer of another coupling or phase; this one has "
                f"coupling={self.coupling!r}, phase={self.phase!r}"
            )

    def extra_repr(self) -> str:
        """The arguments that `repr` shows."""
        dropout = f", dropout={self.dropout}" if self.dropout else ""
        return f"{self.in_features}, {self.out_features}, coupling={self.coupling!r}, phase={self.phase!r}{dropout}"


def _full_precision(tensor: Tensor) -> Any:
    """Disable autocast on devices that support it."""
    if tensor.is_meta:
        return contextlib.nullcontext()
    return torch.autocast(device_type=tensor.device.type, enabled=False)


def check_probability(value: Any, name: str) -> float:
    """A number in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InvalidInputError(f"{name} must be a number from 0 to below 1, got {value!r}")
    return float(value)


def balanced_gain(q: Tensor, phase: str) -> Tensor:
    """The standard deviation of u for which E(h|v) has mean square 1, if u is normal with mean 0.

    In phase II q must be below 1.5, because larger q have smaller amplitudes. In phase I q may be up to 50.

    Examples
    --------
    >>> balanced_gain(torch.tensor([0.5, 6.0], dtype=torch.float64), "I")  # a straight line −u/q, and one with a ripple
    tensor([0.5000, 5.9906], dtype=torch.float64)
    """
    log_q, gains = _tabulated_gains(phase)
    x = q.double().cpu().log()
    if not bool((x <= log_q[-1]).all()):
        raise InvalidInputError(
            f"q must be at most {math.exp(log_q[-1]):.3g} in phase {phase}, got {float(q.max()):.3g}"
        )
    x = x.clamp(min=float(log_q[0]))
    right = torch.searchsorted(log_q, x).clamp(1, len(log_q) - 1)
    part = (x - log_q[right - 1]) / (log_q[right] - log_q[right - 1])
    ratio = torch.lerp(gains[right - 1], gains[right], part)
    return (q.double() * ratio.to(q.device)).to(q.dtype)


@functools.cache
def _tabulated_gains(phase: str) -> tuple[Tensor, Tensor]:
    """Values of log q (49,), and the gain divided by q (49,), by bisection; the mean square is a sum over normal x."""
    low, high = (math.log(0.1), math.log(50.0)) if phase == "I" else (math.log(0.1), math.log(1.5))
    log_q = torch.linspace(low, high, 49, dtype=torch.float64, device="cpu")
    x = torch.linspace(-6, 6, 1501, dtype=torch.float64, device="cpu")[:, None]
    weights = torch.softmax(-0.5 * x[:, 0] ** 2, dim=0)
    q = log_q.exp()
    below, above = torch.full_like(q, 0.2), torch.full_like(q, 3.0)
    for _ in range(40):
        middle = 0.5 * (below + above)
        is_small = weights @ theta_unit(middle * q * x, q, phase) ** 2 < 1
        below, above = torch.where(is_small, middle, below), torch.where(is_small, above, middle)
    return log_q, above
