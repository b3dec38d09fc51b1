"""What each column of a table is: numbers, rounded numbers, numbers with atoms, or categories; and how rows are coded.

A fit sees numbers alone. Categories become the numbers of their levels, dates become days since 1970. A column with
atoms becomes two columns: its other numbers, with gaps at the atoms, and the number of the atom (`ColumnKinds.split`).
Values of rounded columns are spread over their cells (`ColumnKinds.spread`). Draws have as many decimals as the data,
also where no value repeats, so that nothing is to be spread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.distributions import CategoryColumn, ColumnMap, MixedDistribution, NumberColumn
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import distinct_rows
from rtbm.training.mixed import Discrete

ATOM_SHARE, ATOM_RATIO, NEAR_VALUES = 0.03, 10.0, 3
"""A value is an atom if this share of the rows has it, and ATOM_RATIO times as many as the NEAR_VALUES values on either
side of it have, by their median."""
TIED_SHARE = 0.05
"""A column is rounded if its values lie on a grid and at least this share of them repeats another one."""
MOST_DECIMALS = 6
"""Grids of values with more decimals than this are not looked for, and draws of such values are not rounded."""
FEW_VALUES = 10
"""With at most this many values, a cell of a rounded column ends halfway to the next value."""
MOST_COPIES = 32
"""A row that occurs several times is spread to as many places within its cells, and to at most this many. More follow
the cells better, and take longer."""

Levels = list[list[Any] | None]
"""The levels of each column, in the order of their numbers; None for columns of numbers."""


class Cells(NamedTuple):
    """The cells of a rounded column: intervals of one width around multiples of it, or intervals around a few values.

    The first and the last cell are open, so that the probabilities of all cells have the sum 1.

    Examples
    --------
    >>> cells = find_cells(np.repeat(np.arange(20) / 2, 3))
    >>> cells.width, cells.nearest(np.array([2.2, -7.0]))
    (0.5, array([2., 0.]))
    >>> cells.ends(np.array([0.0, 2.0]))
    (array([-inf, 1.75]), array([0.25, 2.25]))
    """

    width: float
    low: float
    high: float
    values: tuple[float, ...] = ()  # if they are few

    def _check_loaded(self) -> None:
        """Check the values of a file."""
        values = np.array(self.values or (self.low, self.high))
        is_ordered = (np.diff(values) >= 0).all() and len(self.values) != 1 and np.isfinite(values).all()
        if not (is_ordered and 0 < self.width < np.inf and (self.low, self.high) == (values[0], values[-1])):
            raise InvalidInputError(f"a rounded column needs cells of positive width in increasing order, got {self!r}")

    def nearest(self, x: Floats) -> Floats:
        """The values of the cells that x (...) lie in; NaN stays."""
        if self.values:
            values = np.array(self.values)
            return np.where(np.isnan(x), np.nan, values[np.searchsorted((values[1:] + values[:-1]) / 2, x)])
        decimals = max(0, int(np.ceil(-np.log10(self.width))) + 2)
        return np.clip(np.round(self.low + self.width * np.rint((x - self.low) / self.width), decimals), *self[1:3])

    def ends(self, x: Floats, is_open: bool = True) -> tuple[Floats, Floats]:
        """The ends (...) of the cells of x (...). With `is_open`, those of the first and the last cell are infinite."""
        centre = self.nearest(x)
        below, above = centre - self.width / 2, centre + self.width / 2
        if self.values:
            values = np.array(self.values)
            steps = np.diff(values, prepend=2 * values[0] - values[1], append=2 * values[-1] - values[-2]) / 2
            place = np.searchsorted(values, np.where(np.isnan(x), self.low, centre))
            below, above = centre - steps[place], centre + steps[place + 1]
        if is_open:
            below, above = np.where(centre <= self.low, -np.inf, below), np.where(centre >= self.high, np.inf, above)
        return below, above

    def outer(self, atoms: Sequence[float]) -> list[float]:
        """Those atoms that lie in the open part of the first or the last cell."""
        below, above = self.ends(np.array([self.low, self.high]), is_open=False)
        return [atom for atom in atoms if not below[0] <= atom <= above[1]]

    def around(self, low: float, high: float, atoms: Sequence[float]) -> tuple[float, float]:
        """The ends of the cells whose values, or atoms, lie from `low` to `high`; these themselves if none does.

        An open cell ends before an outer atom that is not meant, and an outer atom alone has no cell.

        >>> Cells(1.0, 0.0, 90.0).around(30.0, 40.0, [])
        (29.5, 40.5)
        >>> np.round(Cells(1.0, 0.0, 59.0).around(90.0, 100.0, [99.0]), 9)
        array([ 90., 100.])
        """
        steps = (np.clip(np.array([low, high]), self.low, self.high) - self.low) / self.width
        places = self.low + self.width * np.array([np.ceil(steps[0] - 1e-9), np.floor(steps[1] + 1e-9)])
        outer = self.outer(atoms)
        values = np.array([*(self.values or self.nearest(places)), *(atom for atom in atoms if atom not in outer)])
        inside = values[(low <= values) & (values <= high)]
        if not len(inside):
            return float(np.nextafter(low, -np.inf)), float(np.nextafter(high, np.inf))
        begin, end = self.ends(np.array([inside.min(), inside.max()]))
        below = max((np.nextafter(atom, np.inf) for atom in outer if atom < low), default=-np.inf)
        above = min((np.nextafter(atom, -np.inf) for atom in outer if atom > high), default=np.inf)
        return float(max(begin[0], below)), float(min(end[1], above))


def find_cells(values: Floats, weights: Floats | None = None) -> Cells | None:
    """The cells of values (n,) with weights (n,), if they lie on a grid and repeat; else None."""
    weights = np.ones(len(values)) if weights is None else weights
    distinct, total = np.unique(values), max(weights.sum(), len(values))
    if len(distinct) < 2 or len(distinct) > (1 - TIED_SHARE) * total:
        return None
    width = _grid(distinct)
    few = tuple(distinct.tolist()) if len(distinct) <= FEW_VALUES else ()
    return Cells(width, float(distinct[0]), float(distinct[-1]), few) if width > 0 else None


def _grid(values: Floats) -> float:
    """The largest number of which all differences of values are multiples; 0 if they need too many decimals."""
    for decimals in range(MOST_DECIMALS + 1):
        scaled = values * 10.0**decimals
        size = np.abs(scaled).max()
        if size > 2**52:
            return 0.0
        if np.abs(scaled - np.rint(scaled)).max() <= 1e-9 + 4 * np.finfo(np.float64).eps * size:
            steps = np.diff(np.rint(scaled)).astype(np.int64)
            return float(np.gcd.reduce(steps) / 10.0**decimals)
    return 0.0


def _count_decimals(values: Floats) -> int | None:
    """The fewest decimals with which values (n,) can be written; None if they need too many."""
    if np.abs(values).max(initial=0.0) > 2**52:
        return None
    sizes = 1e-14 * np.abs(values)
    enough = (n for n in range(MOST_DECIMALS + 1) if (np.abs(np.round(values, n) - values) <= sizes).all())
    return next(enough, None)


def find_atoms(values: Floats, weights: Floats) -> list[float]:
    """The atoms among values (n,) with weights (n,).

    Examples
    --------
    >>> income = np.concatenate([np.zeros(30), np.linspace(1, 9, 70)])
    >>> find_atoms(income, np.ones(100))
    [0.0]
    """
    distinct, place = np.unique(values, return_inverse=True)
    counts = np.bincount(place, weights, len(distinct))
    found = []
    for i in np.flatnonzero(counts >= ATOM_SHARE * counts.sum()):
        near = np.concatenate([counts[max(i - NEAR_VALUES, 0) : i], counts[i + 1 : i + 1 + NEAR_VALUES]])
        if len(near) and counts[i] >= ATOM_RATIO * np.median(near):
            found.append(float(distinct[i]))
    return found if len(found) < len(distinct) - 1 else []  # a density needs two other values


@dataclass(frozen=True)
class ColumnKinds:
    """What each of d columns is.

    Parameters
    ----------
    levels : list of d lists or None
        The levels of columns of categories; None for columns of numbers.
    atoms : list of d lists
        The atoms of columns of numbers, in increasing order.
    cells : list of d Cells or None
        Those of rounded columns.
    decimals : list of d int or None
        The decimals of draws; None for columns of categories, and for numbers that are drawn with all digits.
    """

    levels: Annotated[list[list[str | float] | None], "d"]
    atoms: Annotated[list[list[float]], "d"]
    cells: Annotated[list[Cells | None], "d"]
    decimals: Annotated[list[Annotated[int, range(MOST_DECIMALS + 1)] | None], "d"]

    @classmethod
    def plain(cls, n_columns: int) -> "ColumnKinds":
        """Columns of numbers, without atoms and not rounded."""
        return cls([None] * n_columns, [[] for _ in range(n_columns)], [None] * n_columns, [None] * n_columns)

    @property
    def n_columns(self) -> int:
        """The number of columns."""
        return len(self.levels)

    @property
    def sizes(self) -> dict[int, int]:
        """The numbers of states of discrete columns, by their places in rows that `split` returns."""
        categories = {i: len(own) for i, own in enumerate(self.levels) if own is not None}
        return categories | {self.n_columns + i: 1 + len(self.atoms[j]) for i, j in enumerate(self._with_atoms)}

    @property
    def _with_atoms(self) -> list[int]:
        return [i for i, own in enumerate(self.atoms) if own]

    def places(self, indices: Sequence[int]) -> list[int]:
        """The places of columns in rows that `split` returns: their own, and those of their atoms."""
        states = [self.n_columns + i for i, j in enumerate(self._with_atoms) if j in indices]
        return [*indices, *states]

    def subset(self, indices: Sequence[int]) -> "ColumnKinds":
        """What some of the columns are."""
        parts: Any = ([part[i] for i in indices] for part in (self.levels, self.atoms, self.cells, self.decimals))
        return ColumnKinds(*parts)

    def split(self, rows: Floats) -> Floats:
        """Rows (n, d) with gaps at atoms, and a column more for each column with atoms.

        That column has 1 + the number of the atom, 0 for another number, and NaN for a gap.
        """
        if not self._with_atoms:
            return rows
        parts = [rows.copy()]
        for i in self._with_atoms:
            state = np.where(np.isnan(rows[:, i]), np.nan, 0.0)
            for number, atom in enumerate(self.atoms[i]):
                state[rows[:, i] == atom] = 1.0 + number
            parts[0][state > 0, i] = np.nan
            parts.append(state[:, None])
        return np.hstack(parts)

    def join(self, density: MixedDistribution, maps: Sequence[ColumnMap]) -> MixedDistribution:
        """The distribution of the columns as given, from the density on the line of rows that `split` returns."""
        columns: list[Any] = [
            replace(column, map=own) if isinstance(column, NumberColumn) else column
            for column, own in zip(density.columns[: self.n_columns], maps, strict=True)
        ]
        for place, i in enumerate(self._with_atoms):
            columns[i] = NumberColumn(maps[i], self.atoms[i], density.columns[self.n_columns + place].probabilities)
        return MixedDistribution(density.weights, density.components, columns)

    def spread(
        self,
        rows: Floats,
        weights: Floats,
        ends: tuple[Floats, Floats],
        seed: int = 0,
        merge: bool = True,
        keys: np.ndarray | None = None,
    ) -> tuple[Floats, Floats]:
        """Rows (m, d) and weights (m,) in which values of rounded columns are spread evenly over their cells.

        Equal rows are merged first, so a weight of k equals k equal rows. They go to several places with equal weights.
        Without `merge` each row stays where it is. With keys (n,), random numbers of 64 bits in the place of the seed,
        rows are not merged, and where one goes depends on its key and its weight alone. `ends` (d,) are the bounds,
        beyond which no cell reaches.
        """
        rounded = [i for i, own in enumerate(self.cells) if own is not None]
        if not rounded:
            return rows, weights
        copies = np.ones(len(rows), dtype=np.int64)
        if merge and keys is None:
            rows, weights = distinct_rows(rows, weights)
        if merge:
            copies = np.clip(np.ceil(weights), 1, MOST_COPIES).astype(np.int64)
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(len(rows)), copies)
        first = np.cumsum(copies) - copies
        spread = rows[group]

        def draw(number: int) -> Floats:
            """Uniform numbers, one for each row that results."""
            if keys is None:
                return rng.random(len(group))
            own = mixed_bits(keys[group] + np.uint64(number))
            copy = (np.arange(len(group)) - first[group]).astype(np.uint64)
            return (mixed_bits(own + copy) >> np.uint64(11)).astype(np.float64) * 2.0**-53

        for number, i in enumerate(rounded):
            own: Any = self.cells[i]
            below, above = own.ends(rows[:, i], is_open=False)
            below, above = np.maximum(below, ends[0][i]), np.minimum(above, ends[1][i])
            rank = np.empty(len(group), dtype=np.int64)
            rank[np.lexsort((draw(2 * number + 1), group))] = np.arange(len(group))
            share = (rank - first[group] + 1e-9 + (1 - 2e-9) * draw(2 * number + 2)) / copies[group]
            is_atom = np.isin(spread[:, i], self.atoms[i])
            spread[:, i] = np.where(is_atom, spread[:, i], below[group] + share * (above - below)[group])
        return spread, (weights / copies)[group]

    @property
    def near_zero(self) -> list[int]:
        """The rounded columns below whose lowest cell is none of positive numbers."""
        return [i for i, own in enumerate(self.cells) if own is not None and own.low <= own.width]

    def rounded(self, rows: Floats, ends: Sequence[tuple[float, float]]) -> Floats:
        """Rows (n, d) with numbers of rounded columns moved to the values of their cells, and others to their decimals.

        `ends` (d,) are pairs of bounds, which no number is moved to, or beyond.
        """
        rows = rows.copy()
        for i, (own, decimals) in enumerate(zip(self.cells, self.decimals, strict=True)):
            near = x = rows[:, i]
            if own is not None:
                near = own.nearest(x)
            elif decimals is not None:
                low, high = np.array(ends[i]) * 10.0**decimals
                first, last = np.floor(low) + 1, np.ceil(high) - 1
                near = np.clip(np.round(x, decimals), *np.round(np.array([first, last]) / 10.0**decimals, decimals))
            rows[:, i] = np.where(np.isin(x, self.atoms[i]), x, near)
        return rows


def mixed_bits(z: np.ndarray) -> np.ndarray:
    """Random numbers (n,) from different integers of 64 bits: the mixer of SplitMix64."""
    z = z.copy()
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53), (33, 1)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    return z


def states_of(rows: Floats, sizes: Mapping[int, int]) -> Discrete:
    """The discrete columns of rows that `ColumnKinds.split` returns, whose `sizes` are known by their places."""
    return Discrete(np.nan_to_num(rows[:, list(sizes)], nan=-1.0).astype(np.int64), tuple(sizes.values()))


def find_columns(
    rows: Floats, weights: Floats, levels: Levels, names: Sequence[Any], atoms: Any, rounded: Any, ends: Any
) -> ColumnKinds:
    """What the columns of rows (n, d) with weights (n,) are; `levels` tells which hold categories.

    `atoms` and `rounded` are those arguments of estimators. `ends` are the bounds (d,): values on them are atoms if
    `atoms` is "auto", unless their column is rounded.
    """
    numbers = [i for i, own in enumerate(levels) if own is None]
    found = replace(ColumnKinds.plain(len(levels)), levels=levels)
    asked_atoms, asked_cells = _asked(atoms, names, "atoms"), _asked(rounded, names, "rounded")
    for i in numbers:
        known = ~np.isnan(rows[:, i]) & (weights > 0)
        values, own_weights = rows[known, i], weights[known]
        own = find_atoms(values, own_weights) if atoms == "auto" else _given_atoms(asked_atoms.get(i, []), names[i])
        rest = ~np.isin(values, own)
        if rounded == "auto":
            found.cells[i] = find_cells(values[rest], own_weights[rest])
            found.decimals[i] = _count_decimals(values)
        elif i in asked_cells:
            found.cells[i] = _cells_of_width(values[rest], asked_cells[i], names[i])
        if atoms == "auto" and found.cells[i] is None:
            own = sorted({*own, *(end[i] for end in ends if (values == end[i]).any())})
        found.atoms[i] = own
    return found


def _asked(argument: Any, names: Sequence[Any], title: str) -> dict[int, Any]:
    """What a user asks for by column: {column: details}, or a list of columns; nothing for "auto" and None."""
    if argument is None or (isinstance(argument, str) and argument == "auto"):
        return {}
    if not isinstance(argument, Mapping | Sequence) or isinstance(argument, str):
        raise InvalidInputError(f'{title} must be "auto", None, or a dictionary by columns, got {argument!r}')
    details = argument if isinstance(argument, Mapping) else dict.fromkeys(argument)
    return {column_place(column, list(names), title): value for column, value in details.items()}


def column_place(column: Any, names: list[Any], title: str) -> int:
    """The number of a column that a user named in an argument."""
    if column in names:
        return names.index(column)
    if isinstance(column, int | np.integer) and 0 <= column < len(names):
        return int(column)
    raise InvalidInputError(f"{title} must name columns of X, {names}, got {column!r}")


def _given_atoms(values: Any, name: Any) -> list[float]:
    try:
        atoms = sorted({float(value) for value in np.atleast_1d(values)})
        if not np.isfinite(atoms).all():
            raise ValueError
    except (TypeError, ValueError):
        raise InvalidInputError(f"atoms must be finite numbers for each column, got {values!r} for {name}") from None
    return atoms


def _cells_of_width(values: Floats, width: Any, name: Any) -> Cells:
    """The cells that a user asks for: those of a width, or of the grid of the values if it is None."""
    if not len(values):
        raise InvalidInputError(f"rounded: column {name} has no values")
    own = _grid(np.unique(values)) if width is None else width
    if isinstance(own, bool) or not isinstance(own, int | float | np.number) or not 0 < own < np.inf:
        raise InvalidInputError(
            f"rounded: {name} needs the width of its cells, a positive number, as in {{{name!r}: 0.5}}; got {width!r}, "
            "and its values lie on no grid of up to six decimals"
        )
    return Cells(float(own), float(values.min()), float(values.max()))


def split_columns(tables: Sequence[Floats], sizes: Mapping[int, int], n_columns: int) -> list[Any]:
    """The columns of rows that `ColumnKinds.split` returns, with these tables of discrete columns."""
    rest = iter(tables)
    return [CategoryColumn(torch.from_numpy(next(rest))) if i in sizes else NumberColumn() for i in range(n_columns)]
