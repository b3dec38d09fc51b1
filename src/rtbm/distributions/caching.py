"""Things that are computed once: the result must not depend on whether that first happens under `torch.no_grad`."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import torch

Value = TypeVar("Value")


def cached_with_graph(function: Callable[[Any], Value]) -> "cached_property[Value]":
    """A cached property that keeps its autograd graph, for parameters that are to be learned."""
    return _cached(function, grad=True)


def cached_without_graph(function: Callable[[Any], Value]) -> "cached_property[Value]":
    """A cached property without autograd graph, for constants."""
    return _cached(function, grad=False)


def _cached(function: Callable[[Any], Value], grad: bool) -> "cached_property[Value]":
    def compute(self: Any) -> Value:
        with torch.inference_mode(False), torch.set_grad_enabled(grad):
            return function(self)

    compute.__doc__ = function.__doc__
    return cached_property(compute)
