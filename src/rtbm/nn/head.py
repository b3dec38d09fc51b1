"""The last layer of a network that predicts densities: features in, a machine for each row out."""

import torch
from torch import Tensor, nn

from rtbm.distributions import RTBMBatch
from rtbm.errors import InvalidInputError
from rtbm.nn.machine import RTBM
from rtbm.parameters import pack, unpack
from rtbm.validation import check_integer


class RTBMHead(nn.Module):
    """A mixture-density head whose mixtures are machines. Calling it returns an `rtbm.distributions.RTBMBatch`::

        free parameters of row i = W·features_i + b,     P(v | features_i) = the machine of these

    Every value of the free parameters is a machine, so nothing has to be clipped. At first, all rows have nearly the
    same machine, that of a new `RTBM`: data of mean 0 and variance 1 suit it.

    Parameters
    ----------
    in_features : int
        The number of features.
    n_visible, n_hidden : int
        The numbers of units of the machines: coordinates of the targets, and hidden units. Sums over hidden states are
        formed anew for each row, which suits up to three hidden units.
    coupling : "dense" or "diagonal", default="dense"
        The shape of Q.
    tolerance : float, default=1e-12
        Bounds the relative truncation error of each sum.
    generator : torch.Generator, default=None
        For repeatable initial values.
    dtype : torch.dtype, default=torch.float64
        The dtype of the parameters, float32 or float64. Features are cast to it; sums are in float64.
    device : torch.device, default=None
        The device of the parameters; None is the CPU.

    Examples
    --------
    >>> head = RTBMHead(8, 1, 2, generator=torch.Generator().manual_seed(0))
    >>> batch = head(torch.randn(5, 8))
    >>> loss = -batch.log_prob(torch.zeros(5, 1)).mean()
    >>> loss.backward()
    >>> head.linear.weight.grad.shape
    torch.Size([9, 8])
    """

    def __init__(
        self,
        in_features: int,
        n_visible: int,
        n_hidden: int,
        *,
        coupling: str = "dense",
        tolerance: float = 1e-12,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        self.in_features: int = check_integer(in_features, "in_features", 1)
        start = RTBM(
            n_visible,
            n_hidden,
            coupling=coupling,
            tolerance=tolerance,
            generator=generator,
            dtype=dtype,
            device=device,
        )
        self.n_visible, self.n_hidden, self.coupling = start.n_visible, start.n_hidden, start.coupling
        self.tolerance: float = start.tolerance
        bias = pack(start.free).detach()
        self.linear: nn.Linear = nn.Linear(in_features, len(bias), dtype=dtype, device=device)
        with torch.no_grad():
            where = bias.device if generator is None else generator.device
            normal = torch.randn(self.linear.weight.shape, dtype=torch.float64, device=where, generator=generator)
            self.linear.weight.copy_(0.1 * normal / in_features**0.5)
            self.linear.bias.copy_(bias)

    def forward(self, features: Tensor) -> RTBMBatch:
        """The machines (...) of features (..., in_features); gradients flow back to the features and the parameters."""
        if not isinstance(features, Tensor) or features.ndim < 2 or features.shape[-1] != self.in_features:
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise InvalidInputError(f"features must be a tensor of shape (rows, …, {self.in_features}), got {got}")
        vectors = self.linear(features.to(self.linear.weight.dtype))
        return RTBMBatch(unpack(vectors, self.n_visible, self.n_hidden, self.coupling), tolerance=self.tolerance)

    def extra_repr(self) -> str:
        """The arguments that `repr` shows."""
        return (
            f"in_features={self.in_features}, n_visible={self.n_visible}, n_hidden={self.n_hidden}, "
            f"coupling={self.coupling!r}"
        )
