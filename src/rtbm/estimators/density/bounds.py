"""The argument `bounds`: what users may give, and checks of data."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from rtbm.common import Floats
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import listed


class Contact(NamedTuple):
    """How data touch their lower and upper bounds."""

    counts: np.ndarray  # (2, n_features): of the values on the bound
    distances: Floats  # (2, n_features): of the nearest other value from the bound; ∞ without any

    def plus(self, other: "Contact") -> "Contact":
        """That of both parts of the data together."""
        return Contact(self.counts + other.counts, np.minimum(self.distances, other.distances))

    def subset(self, indices: list[int]) -> "Contact":
        """That of some features."""
        return Contact(self.counts[:, indices], self.distances[:, indices])

    def warn(self, names: list[str]) -> None:
        """Warn of values on a bound."""
        seen = [f"{name} ({n})" for name, n in zip(names, self.counts.sum(axis=0), strict=True) if n]
        if seen:
            warnings.warn(
                f"bounds: values lie on a bound, in {listed(seen)}. They count as values inside, halfway between the "
                "bound and the nearest other value. If they are many, widen the bounds, or fit the other rows alone",
                stacklevel=4,
            )


class Bounds(NamedTuple):
    """The bounds of features.

    The density is described on the real line, where a value on a bound would be infinitely far out. A bound that some
    training data lie on is closed: values on it count as a value inside, halfway between the bound and the nearest
    other value of the training data. Values on another bound are outside.

    Parameters
    ----------
    low, high : (n_features,)
        −∞ and +∞ where there is no bound.
    first, last : (n_features,)
        What values on the lower and on the upper bound count as: `low` and `high` where the bound is not closed.

    Examples
    --------
    >>> bounds = make_bounds((0, None), ["age"])
    >>> X = np.array([[0.0], [0.5]])
    >>> bounds.closed(bounds.contact(X)).inside(X)
    array([[0.25],
           [0.5 ]])
    """

    low: Annotated[Floats, "d"]
    high: Annotated[Floats, "d"]
    first: Annotated[Floats, "d"]
    last: Annotated[Floats, "d"]

    def _check_loaded(self) -> None:
        """Check the values of a file."""
        inside = (self.low <= self.first) & (self.first <= self.last) & (self.last <= self.high)
        if not (inside & (self.low < self.high)).all():
            raise InvalidInputError(f"low, first, last and high must increase, got {self!r}")

    @property
    def is_trivial(self) -> bool:
        """Whether no feature is bounded."""
        return bool(np.isinf(self.low).all() and np.isinf(self.high).all())

    @property
    def pairs(self) -> list[tuple[float | None, float | None]]:
        """The pairs (low, high) of the features, with None where there is no bound: an argument of `make_bounds`."""
        ends = zip(self.low, self.high, strict=True)
        return [tuple(None if np.isinf(end) else float(end) for end in pair) for pair in ends]  # type: ignore[misc]

    def without(self, indices: list[int]) -> "Bounds":
        """The same without bounds of some features."""
        parts = [part.copy() for part in self]
        for part, end in zip(parts, (-np.inf, np.inf, -np.inf, np.inf), strict=True):
            part[indices] = end
        return Bounds(*parts)

    def subset(self, indices: list[int]) -> "Bounds":
        """The bounds of some features."""
        return Bounds(*(part[indices] for part in self))

    def check(self, x: Floats, names: list[str]) -> None:
        """Check that no data are outside."""
        inside = self.inside(x)
        outside = (inside <= self.low) | (inside >= self.high)
        if outside.any():
            row, column = (int(i) for i in np.argwhere(outside)[0])
            raise InvalidInputError(
                f"bounds: {int(outside.sum())} values are not inside, the first is {x[row, column]:g} in row "
                f"{row} of {names[column]}, whose bounds are ({self.low[column]:g}, {self.high[column]:g}): widen the "
                "bounds or leave these rows out"
            )

    def contact(self, x: Floats) -> Contact:
        """How data (n, d) touch the bounds."""
        if self.is_trivial:
            return Contact(np.zeros((2, x.shape[1]), dtype=int), np.full((2, x.shape[1]), np.inf))
        gaps = np.stack([x - self.low, self.high - x])
        return Contact((gaps == 0).sum(axis=1), np.where(gaps > 0, gaps, np.inf).min(axis=1, initial=np.inf))

    def contact_beside(self, contact: Contact, atoms: Sequence[Sequence[float]]) -> Contact:
        """That of data whose atoms do not count, since no machine describes them."""
        is_atom = [[end in own for end, own in zip(side, atoms, strict=True)] for side in (self.low, self.high)]
        return contact._replace(counts=np.where(is_atom, 0, contact.counts))

    def closed(self, contact: Contact) -> "Bounds":
        """The same, with bounds closed that data lie on."""
        steps = np.minimum(contact.distances / 2, self.high / 4 - self.low / 4)
        steps = np.where(np.isfinite(steps), steps, 0.0)
        first = np.maximum(self.low + steps[0], np.nextafter(self.low, np.inf))
        last = np.minimum(self.high - steps[1], np.nextafter(self.high, -np.inf))
        first, last = np.where(contact.counts > 0, [first, last], [self.low, self.high])
        return self._replace(first=first, last=last)

    def inside(self, x: Floats) -> Floats:
        """x (n, d) with values on a bound moved inside."""
        if self.is_trivial:
            return x
        return np.where(x == self.low, self.first, np.where(x == self.high, self.last, x))


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
    return Bounds(low, high, low, high)


def _by_name(bounds: Mapping[Any, Any], names: Sequence[Any]) -> list[Any]:
    """A pair or None for each feature."""
    pairs: list[Any] = [None] * len(names)
    for feature, pair in bounds.items():
        number = list(names).index(feature) if feature in names else feature
        if not isinstance(number, int | np.integer) or not 0 <= number < len(names):
            raise InvalidInputError(f"bounds: there is no feature {feature!r}, only {list(names)}")
        pairs[int(number)] = pair
    return pairs
