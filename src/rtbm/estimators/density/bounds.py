"""The argument `bounds`: what users may give, checks of data, and the way to the real line and back."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.distributions.bounded import from_line, to_line
from rtbm.errors import InvalidInputError


class Bounds(NamedTuple):
    """Maps features with bounds to the whole line and back.

    Parameters
    ----------
    low, high : (n_features,)
        −∞ and +∞ where there is no bound.

    Examples
    --------
    >>> bounds = Bounds(np.array([0.0]), np.array([np.inf]))
    >>> y, log_slope = bounds.to_line(np.array([[1.0], [2.0]]))
    >>> y[:, 0].round(3), log_slope.round(3)
    (array([0.   , 0.693]), array([ 0.   , -0.693]))
    """

    low: Floats
    high: Floats

    @property
    def is_trivial(self) -> bool:
        """Whether no feature is bounded."""
        return bool(np.isinf(self.low).all() and np.isinf(self.high).all())

    @property
    def pairs(self) -> list[tuple[float | None, float | None]]:
        """The pairs (low, high) of the features, with None where there is no bound: an argument of `make_bounds`."""
        ends = zip(self.low, self.high, strict=True)
        return [tuple(None if np.isinf(end) else float(end) for end in pair) for pair in ends]  # type: ignore[misc]

    def subset(self, indices: list[int]) -> "Bounds":
        """The bounds of some features."""
        return Bounds(self.low[indices], self.high[indices])

    def check(self, x: Floats, names: list[str]) -> None:
        """Check that all data are inside."""
        outside = (x <= self.low) | (x >= self.high)
        if outside.any():
            row, column = (int(i) for i in np.argwhere(outside)[0])
            raise InvalidInputError(
                f"bounds: {int(outside.sum())} values are not strictly inside, the first is {x[row, column]:g} in row "
                f"{row} of {names[column]}, whose bounds are ({self.low[column]:g}, {self.high[column]:g}): widen the "
                "bounds or leave these rows out"
            )

    def to_line(self, x: Floats) -> tuple[Floats, Floats]:
        """y (n, d), and log dy/dx summed over the features (n,); see `rtbm.distributions.bounded.to_line`."""
        y, log_slope = to_line(torch.from_numpy(x), *map(torch.from_numpy, self))
        return y.numpy(), log_slope.numpy()

    def from_line(self, y: Floats) -> Floats:
        """x (n, d), the inverse of `to_line`."""
        return from_line(torch.from_numpy(y), *map(torch.from_numpy, self)).numpy()


def make_bounds(bounds: Any, names: Sequence[Any]) -> Bounds:
    """The bounds that a user gave: None, a pair (low, high) for all features, a list with a pair or None for each, or
    a dictionary with pairs for some, by name or number. None within a pair stands for no bound.

    Examples
    --------
    >>> make_bounds((0, None), ["age", "income"]).high
    array([inf, inf])
    >>> make_bounds({"income": (0, None)}, ["age", "income"]).low
    array([-inf,   0.])
    """
    n_features = len(names)
    if isinstance(bounds, Mapping):
        bounds = _by_name(bounds, names)
    if bounds is None:
        bounds = [None] * n_features
    try:
        given = list(bounds)
        known = [end for end in given if end is not None]
        is_pair = len(given) == 2 and len(known) > 0 and all(np.ndim(end) == 0 for end in known)
        pairs = [(None, None) if pair is None else tuple(pair) for pair in ([given] * n_features if is_pair else given)]
        low = np.array([-np.inf if a is None else float(a) for a, _ in pairs])
        high = np.array([np.inf if b is None else float(b) for _, b in pairs])
        if len(pairs) != n_features or not (low < high).all():
            raise ValueError
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"bounds must be None, one pair (low, high) with low < high, a list of {n_features} such pairs or None, or "
            f"a dictionary {{feature: pair}}, got {bounds!r}: use None for a side without a bound, as in (0, None)"
        ) from None
    return Bounds(low, high)


def _by_name(bounds: Mapping[Any, Any], names: Sequence[Any]) -> list[Any]:
    """A pair or None for each feature."""
    pairs: list[Any] = [None] * len(names)
    for feature, pair in bounds.items():
        number = list(names).index(feature) if feature in names else feature
        if not isinstance(number, int | np.integer) or not 0 <= number < len(names):
            raise InvalidInputError(f"bounds: there is no feature {feature!r}, only {list(names)}")
        pairs[int(number)] = pair
    return pairs
