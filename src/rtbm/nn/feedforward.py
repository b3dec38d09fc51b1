"""Feedforward networks of theta layers and ordinary layers."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from rtbm.errors import InvalidInputError
from rtbm.nn.theta_layer import ThetaLayer, check_probability
from rtbm.validation import check_choice, check_integer

THETA_PHASES = {"theta": "I", "theta-I": "I", "theta-II": "II"}
"""The phase of each kind of theta layer. "theta" is short for "theta-I"."""
FIXED_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}
"""Activation functions without parameters. A new entry becomes a name that `make_network` takes."""
ACTIVATIONS = (*THETA_PHASES, *FIXED_ACTIVATIONS, "linear")
"""All names that `make_network` takes."""
THETA_OPTIONS = ("coupling", "initialization", "tolerance")
"""Arguments of `ThetaLayer` that `make_network` passes on."""


def make_network(
    n_inputs: int,
    sizes: Sequence[int],
    activations: Sequence[str],
    *,
    generator: torch.Generator | None = None,
    dropout: float = 0.0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **theta_options: Any,
) -> nn.Sequential:
    """A network of fully connected layers, each followed by its activation function.

    Parameters
    ----------
    n_inputs : int
        The number of inputs.
    sizes : sequence of int
        The number of units of each layer. The last layer is the output.
    activations : sequence of str
        For each layer "theta" or "theta-I", "theta-II", "tanh", "relu" or "linear".
    generator : torch.Generator, default=None
        For repeatable initial values.
    dropout : float, default=0.0
        The dropout probability of all layers except the last.
    device, dtype : default=None
        As in every torch module.
    **theta_options
        Further arguments of theta layers: `coupling`, `initialization`, `tolerance`.

    Examples
    --------
    >>> network = make_network(1, [3, 3, 2, 1], ["theta"] * 4)  # the paper's network for time series
    >>> sum(parameter.numel() for parameter in network.parameters())
    38
    """
    unknown = set(theta_options) - set(THETA_OPTIONS)
    if unknown:
        raise InvalidInputError(
            f"unknown options of theta layers: {', '.join(sorted(unknown))}; known are {', '.join(THETA_OPTIONS)}"
        )
    check_probability(dropout, "dropout")
    if len(sizes) != len(activations) or not sizes:
        raise InvalidInputError(f"every layer needs an activation, got {len(sizes)} sizes and {len(activations)} names")
    modules: list[nn.Module] = []
    n = check_integer(n_inputs, "n_inputs", 1)
    for i, (size, name) in enumerate(zip(sizes, activations, strict=True)):
        check_choice(name, "activation", ACTIVATIONS)
        check_integer(size, "size of a layer", 1)
        part = dropout if i < len(sizes) - 1 else 0.0
        if name in THETA_PHASES:
            options = theta_options | {"phase": THETA_PHASES[name], "dropout": part}
            modules.append(ThetaLayer(n, size, generator=generator, device=device, dtype=dtype, **options))
        else:
            modules.append(_linear(n, size, generator, device, dtype))
            modules += [FIXED_ACTIVATIONS[name]()] if name in FIXED_ACTIVATIONS else []
            modules += [nn.Dropout(part)] if part else []
        n = size
    return nn.Sequential(*modules)


def affine_layers(network: nn.Module) -> Iterator[ThetaLayer | nn.Linear]:
    """The layers that own weights, from input to output."""
    for module in network.modules():
        if isinstance(module, ThetaLayer | nn.Linear):
            yield module


@torch.no_grad()
def _linear(
    n_inputs: int, size: int, generator: torch.Generator | None, device: Any, dtype: torch.dtype | None
) -> nn.Linear:
    """A linear layer with initial weights of variance 1 / n_inputs and bias 0."""
    layer = nn.utils.skip_init(nn.Linear, n_inputs, size, device=device or "cpu", dtype=dtype)
    if layer.weight.is_meta:
        return layer
    where = layer.weight.device if generator is None else generator.device
    weights = torch.randn(size, n_inputs, dtype=torch.float64, device=where, generator=generator)
    layer.weight.copy_(weights / n_inputs**0.5)
    layer.bias.zero_()
    return layer
