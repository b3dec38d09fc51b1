"""Riemann-Theta Boltzmann machines as torch modules, whose parameters have no constraints."""

from typing import Any

import torch
from torch import nn

from rtbm import distributions
from rtbm.common import PHASES
from rtbm.errors import InvalidInputError
from rtbm.parameters import COUPLINGS, Free, count, log_cholesky, unpack
from rtbm.validation import check_choice, check_integer, check_shape, check_tolerance


class RTBM(nn.Module):
    """One machine. Calling it returns the `rtbm.RTBMDistribution` of its present parameters.

    The parameters `hidden_scale`, `hidden_centre`, `weights`, `visible_centre` and `visible_scale` are those of
    `rtbm.parameters.Free`. Every value of them is a machine, within the range of float64, so no step of an optimiser
    has to be rejected. `rtbm.parameters.pack(module.free)` equals
    `torch.nn.utils.parameters_to_vector(module.parameters())`.

    Parameters
    ----------
    n_visible, n_hidden : int
        The numbers of units.
    coupling : "dense" or "diagonal", default="dense"
        The shape of Q. Diagonal machines may have hundreds of hidden units for up to three visible ones.
    phase : "I" or "II", default="I"
        The phase of the natural parameters that the distribution shows, and of its `hidden_mean`. Both phases have the
        same densities and the same free parameters.
    tolerance : float, default=1e-12
        Bounds the relative truncation error of each theta function.
    generator : torch.Generator, default=None
        For repeatable initial values.
    dtype : torch.dtype, default=torch.float64
        The dtype of the parameters, float32 or float64.
    device : torch.device, default=None
        The device of the parameters; None is the CPU.

    Examples
    --------
    >>> module = RTBM(1, 2, generator=torch.Generator().manual_seed(0))
    >>> module
    RTBM(n_visible=1, n_hidden=2, coupling='dense', phase='I')
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
        coupling: str = "dense",
        phase: str = "I",
        tolerance: float = 1e-12,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        self.n_visible: int = check_integer(n_visible, "n_visible", 1)
        self.n_hidden: int = check_integer(n_hidden, "n_hidden", 1)
        self.coupling: str = check_choice(coupling, "coupling", COUPLINGS)
        self.phase: str = check_choice(phase, "phase", PHASES)
        self.tolerance: float = check_tolerance(tolerance)
        if dtype not in (torch.float32, torch.float64):
            raise InvalidInputError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        free = unpack(torch.zeros(self.n_parameters, dtype=dtype, device=device), n_visible, n_hidden, coupling)
        for name, value in zip(free._fields[:-1], free[:-1], strict=True):
            self.register_parameter(name, nn.Parameter(value))
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
        if not isinstance(distribution, distributions.RTBMDistribution):
            raise InvalidInputError(f"distribution must be an RTBMDistribution, got a {type(distribution).__name__}")
        module = cls(
            distribution.n_visible,
            distribution.n_hidden,
            coupling=distribution.coupling,
            phase=distribution.phase,
            tolerance=distribution.tolerance,
            dtype=distribution.dtype,
            device=distribution.device,
        )
        module.load_free(distribution.free)
        return module

    @property
    def n_parameters(self) -> int:
        """The number of free parameters."""
        return count(self.n_visible, self.n_hidden, self.coupling)

    @property
    def free(self) -> Free:
        """The parameters as `rtbm.parameters.Free`."""
        tensors = {name: getattr(self, name) for name in Free._fields[:-1]}  # also those of torch.func.functional_call
        return Free(**tensors, coupling=self.coupling)

    def forward(self) -> distributions.RTBMDistribution:
        """The distribution of the present parameters; gradients flow back to them."""
        return distributions.RTBMDistribution.from_free(self.free, phase=self.phase, tolerance=self.tolerance)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw initial values for data of mean 0 and variance 1.

        Dense: A = 10·I and centre ½, so that h starts on {0, 1}, and random F whose 2^Nh sums spread over the data.
        Diagonal: q in [2, 18] as in the paper, and random phases and frequencies.
        """
        device = self.get_parameter("weights").device if generator is None else generator.device
        normal = torch.randn(self.n_visible, self.n_hidden, dtype=torch.float64, device=device, generator=generator)
        uniform = torch.rand(2, self.n_hidden, dtype=torch.float64, device=device, generator=generator)
        one_v, one_h = (torch.eye(n, dtype=torch.float64, device=device) for n in (self.n_visible, self.n_hidden))
        if self.coupling == "dense":
            F = normal * (3 / self.n_hidden) ** 0.5
            free = log_cholesky(10 * one_h), 0.5 + 0 * uniform[0], F, -0.5 * F.sum(1), log_cholesky(0.25 * one_v)
        else:
            free = (2 + 16 * uniform[0]).log(), uniform[1], 2 * normal, 0 * normal[:, 0], log_cholesky(one_v)
        self.load_free(Free(*free)._replace(coupling=self.coupling))

    @torch.no_grad()
    def load_free(self, free: Free) -> None:
        """Copy the free parameters of a machine of the same size and coupling into this module."""
        if not isinstance(free, Free) or free.coupling != self.coupling:
            raise InvalidInputError(
                f"free must be an rtbm.parameters.Free of a {self.coupling} machine, got {free!r}: make one with "
                f"unpack(vector, {self.n_visible}, {self.n_hidden}, {self.coupling!r})"
            )
        for name, value in zip(free._fields[:-1], free[:-1], strict=True):
            parameter = self.get_parameter(name)
            parameter.copy_(check_shape(value, f"free.{name}", tuple(parameter.shape)))

    def get_extra_state(self) -> dict[str, str]:
        """Coupling and phase for a state dict, under the key that older state dicts use for the coupling."""
        return {"hidden": self.coupling, "phase": self.phase}

    def set_extra_state(self, state: dict[str, str]) -> None:
        """Check that a state dict belongs to a machine of this coupling and phase."""
        if state != self.get_extra_state():
            raise InvalidInputError(
                f"the state belongs to a machine with coupling={state.get('hidden')!r}, phase={state.get('phase')!r}; "
                f"this one has coupling={self.coupling!r}, phase={self.phase!r}"
            )

    def extra_repr(self) -> str:
        """The arguments that `repr` shows."""
        return f"n_visible={self.n_visible}, n_hidden={self.n_hidden}, coupling={self.coupling!r}, phase={self.phase!r}"


class MixtureOfRTBMs(nn.Module):
    """A mixture of machines. Calling it returns the `rtbm.RTBMMixture` of its present parameters.

    Parameters
    ----------
    n_components : int
        The number of machines, in the list `components`. Their weights are softmax(`logits`).
    n_visible, n_hidden : int
        The numbers of units of every machine.
    **options
        Further arguments of `RTBM`, for every machine.

    Examples
    --------
    >>> MixtureOfRTBMs(3, 1, 2)()
    RTBMMixture(3 components, n_visible=1, dtype=torch.float64)
    """

    def __init__(self, n_components: int, n_visible: int, n_hidden: int, **options: Any):
        super().__init__()
        check_integer(n_components, "n_components", 1)
        machines = (RTBM(n_visible, n_hidden, **options) for _ in range(n_components))
        self.components: nn.ModuleList = nn.ModuleList(machines)
        first = next(self.components.parameters())
        self.logits: nn.Parameter = nn.Parameter(torch.zeros(n_components, dtype=first.dtype, device=first.device))

    @classmethod
    def from_distribution(cls, mixture: distributions.RTBMMixture) -> "MixtureOfRTBMs":
        """A module whose distribution is the given one. Its components may differ in size.

        Examples
        --------
        >>> mixture = MixtureOfRTBMs(2, 1, 1)()
        >>> torch.equal(MixtureOfRTBMs.from_distribution(mixture)().weights, mixture.weights)
        True
        """
        if not isinstance(mixture, distributions.RTBMMixture):
            raise InvalidInputError(f"mixture must be an rtbm.RTBMMixture, got a {type(mixture).__name__}")
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        module.components = nn.ModuleList(RTBM.from_distribution(component) for component in mixture.components)
        module.logits = nn.Parameter(mixture.logits.detach().clamp(min=-100.0))
        return module

    def forward(self) -> distributions.RTBMMixture:
        """The mixture of the present parameters; gradients flow back to them."""
        return distributions.RTBMMixture.from_logits(self.logits, [component() for component in self.components])
