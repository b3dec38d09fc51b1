"""Riemann-Theta Boltzmann machines as torch modules with parameters that are valid wherever an optimiser goes."""

from typing import Any

import torch
from torch import nn

from rtbm import distributions
from rtbm.errors import InvalidInputError
from rtbm.parameters import HIDDEN, Unconstrained, count, log_cholesky, unpack
from rtbm.validation import check_choice, check_positive_integer, check_tolerance


class RTBM(nn.Module):
    """One machine. Calling it gives the `rtbm.RTBMDistribution` of its present parameters.

    The parameters are the free ones of `rtbm.parameters.Unconstrained`, so every value of them is a machine: no step of
    an optimiser has to be rejected. `hidden_factor`, `centre`, `weights`, `mean` and `factor` are those tensors;
    `torch.nn.utils.parameters_to_vector(module.parameters())` is `rtbm.parameters.pack` of them.

    Parameters
    ----------
    n_visible, n_hidden : int
        The numbers of units.
    hidden : "dense" or "diagonal"
        The form of Q. Diagonal machines may have hundreds of hidden units for up to three visible ones.
    phase : "I" or "II"
        The phase in which the distribution shows its parameters, and that `hidden_mean` follows. Both phases have the
        same densities, and are optimised in the same parameters.
    tolerance : float
        Bounds the relative truncation error of each theta function.
    generator : torch.Generator
        For repeatable initial values.
    dtype, device
        As in every torch module; by default float64 on the CPU.

    Examples
    --------
    >>> module = RTBM(1, 2, generator=torch.Generator().manual_seed(0))
    >>> module
    RTBM(n_visible=1, n_hidden=2, hidden='dense', phase='I')
    >>> data = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    >>> loss = -module().log_prob(data).mean()
    >>> loss.backward()
    >>> module.weights.grad.shape
    torch.Size([1, 2])
    """

    def __init__(
        self,
        n_visible: int,
        n_hidden: int,
        *,
        hidden: str = "dense",
        phase: str = "I",
        tolerance: float = 1e-12,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        self.n_visible = check_positive_integer(n_visible, "n_visible")
        self.n_hidden = check_positive_integer(n_hidden, "n_hidden")
        self.hidden = check_choice(hidden, "hidden", HIDDEN)
        self.phase = check_choice(phase, "phase", ("I", "II"))
        self.tolerance = check_tolerance(tolerance)
        if dtype not in (torch.float32, torch.float64):
            raise InvalidInputError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        free = unpack(torch.zeros(self.n_parameters, dtype=dtype, device=device), n_visible, n_hidden, hidden)
        self.hidden_factor = nn.Parameter(free.hidden)
        self.centre = nn.Parameter(free.centre)
        self.weights = nn.Parameter(free.weights)
        self.mean = nn.Parameter(free.mean)
        self.factor = nn.Parameter(free.factor)
        self.reset_parameters(generator)

    @classmethod
    def from_distribution(cls, distribution: distributions.RTBMDistribution) -> "RTBM":
        """A module whose distribution is the given one.

        Examples
        --------
        >>> machine = RTBM(2, 2)()
        >>> copy = RTBM.from_distribution(machine)()
        >>> v = torch.zeros(2, dtype=torch.float64)
        >>> bool((copy.log_prob(v) - machine.log_prob(v)).abs() < 1e-12)
        True
        """
        mean = distribution.mean
        module = cls(
            distribution.n_visible,
            distribution.n_hidden,
            hidden=distribution.hidden,
            phase=distribution.phase,
            tolerance=distribution.tolerance,
            dtype=mean.dtype,
            device=mean.device,
        )
        module.load_free(distribution.unconstrained)
        return module

    @property
    def n_parameters(self) -> int:
        """The number of free parameters."""
        return count(self.n_visible, self.n_hidden, self.hidden)

    @property
    def free(self) -> Unconstrained:
        """The parameters under the names of `rtbm.parameters`."""
        return Unconstrained(self.hidden_factor, self.centre, self.weights, self.mean, self.factor, self.hidden)

    def forward(self) -> distributions.RTBMDistribution:
        """The distribution of the present parameters; gradients flow back to them."""
        return distributions.RTBMDistribution.from_unconstrained(self.free, phase=self.phase, tolerance=self.tolerance)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw initial values for data of mean 0 and variance 1.

        Dense: A = 10·I and centre ½, so that h starts on {0, 1}, and random F whose 2^Nh sums spread over the data.
        Diagonal: q in [2, 18] as in the paper, and random phases and frequencies.
        """
        size = (self.n_visible, self.n_hidden)
        device = self.mean.device if generator is None else generator.device
        normal = torch.randn(size, dtype=torch.float64, device=device, generator=generator)
        uniform = torch.rand(2, self.n_hidden, dtype=torch.float64, device=device, generator=generator)
        if self.hidden == "diagonal":
            self.hidden_factor.copy_((2 + 16 * uniform[0]).log())
            self.centre.copy_(uniform[1])
            self.weights.copy_(2 * normal)
            self.mean.zero_()
            self.factor.zero_()
            return
        F = normal * (3 / self.n_hidden) ** 0.5
        self.hidden_factor.copy_(log_cholesky(10 * torch.eye(self.n_hidden, dtype=torch.float64)))
        self.centre.fill_(0.5)
        self.weights.copy_(F)
        self.mean.copy_(-0.5 * F.sum(1))
        self.factor.copy_(log_cholesky(0.25 * torch.eye(self.n_visible, dtype=torch.float64)))

    @torch.no_grad()
    def load_free(self, free: Unconstrained) -> None:
        """Copy free parameters into this module."""
        for parameter, value in zip(self.parameters(), free[:-1], strict=True):
            parameter.copy_(value)

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"n_visible={self.n_visible}, n_hidden={self.n_hidden}, hidden={self.hidden!r}, phase={self.phase!r}"


class RTBMMixture(nn.Module):
    """A mixture of machines. Calling it gives the `rtbm.RTBMMixture` of its present parameters.

    Parameters
    ----------
    n_components : int
        The number of machines, in the list `components`. Their weights are softmax(`logits`).
    n_visible, n_hidden, **options
        As in `RTBM`, for every component.

    Examples
    --------
    >>> RTBMMixture(3, 1, 2)()
    RTBMMixture(3 components, n_visible=1, dtype=torch.float64)
    """

    def __init__(self, n_components: int, n_visible: int, n_hidden: int, **options: Any):
        super().__init__()
        check_positive_integer(n_components, "n_components")
        self.components = nn.ModuleList(RTBM(n_visible, n_hidden, **options) for _ in range(n_components))
        first = next(self.components.parameters())
        self.logits = nn.Parameter(torch.zeros(n_components, dtype=first.dtype, device=first.device))

    @classmethod
    def from_distribution(cls, mixture: distributions.RTBMMixture) -> "RTBMMixture":
        """A module whose distribution is the given one; its components may differ in size."""
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        module.components = nn.ModuleList(RTBM.from_distribution(component) for component in mixture.components)
        module.logits = nn.Parameter(mixture.weights.detach().log())
        return module

    def forward(self) -> distributions.RTBMMixture:
        """The mixture of the present parameters; gradients flow back to them."""
        return distributions.RTBMMixture.from_logits(self.logits, [component() for component in self.components])
