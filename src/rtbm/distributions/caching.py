"""Properties that forward, and cached ones that do not depend on the autograd mode in which they are computed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

import torch

Value = TypeVar("Value")


def forwarded(path: str, text: str) -> Any:
    """A read-only property with the value of another attribute, such as "natural.T", and with its own docstring."""
    return property(attrgetter(path), doc=text)


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Leave inference mode, without switching gradients on: torch.inference_mode(False) alone would."""
    grad = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(grad):
        yield


def cached_with_graph(function: Callable[[Any], Value]) -> "cached_property[Value]":
    """A cached property that keeps its autograd graph, for parameters that are to be learned."""
    return _cached(function, grad=True)


def cached_without_graph(function: Callable[[Any], Value]) -> "cached_property[Value]":
    """A cached property without autograd graph, for constants."""
    return _cached(function, grad=False)


def cached_unless_graph(function: Callable[[Any], Value]) -> Any:
    """A property that is cached without autograd graph; where `self._wants_graph()`, it is computed at each access."""
    fixed = _cached(function, grad=False)
    fixed.__set_name__(object, f"fixed {function.__name__}")

    def compute(self: Any) -> Value:
        return function(self) if self._wants_graph() else fixed.__get__(self)

    return property(compute, doc=function.__doc__)


def _cached(function: Callable[[Any], Value], grad: bool) -> "cached_property[Value]":
    def compute(self: Any) -> Value:
        with torch.inference_mode(False), torch.set_grad_enabled(grad):
            return function(self)

    compute.__doc__ = function.__doc__
    return cached_property(compute)
