"""Distributions of tables with numbers, repeated values and categories."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, constraints

from rtbm.distributions.arguments import (
    broadcast,
    broadcast_to_batch,
    check_indices,
    check_known,
    check_points,
    check_probabilities,
    refuse_rsample,
)
from rtbm.distributions.caching import cached_with_graph
from rtbm.distributions.conditional import ConditionalDistribution
from rtbm.distributions.mapped import MappedDistribution
from rtbm.distributions.maps import ColumnMap, to_line
from rtbm.distributions.mixture import RTBMMixture
from rtbm.distributions.notebook import distribution_html
from rtbm.distributions.rtbm import RTBMDistribution
from rtbm.errors import InvalidInputError
from rtbm.validation import as_real, as_shape, check_vector

RANGE_NODES, RANGE_REACH, MAX_RANGE_PANELS, NEGLIGIBLE_NODE = 16, 9.0, 256, 1e-14
"""A range of a column is cut into panels of two standard deviations of the column given all others, with RANGE_NODES
nodes each, as far as RANGE_REACH standard deviations. Nodes with a share below NEGLIGIBLE_NODE of the largest are left
out, and more than MAX_RANGE_PANELS panels are an error."""
LOG_NEGLIGIBLE = -34.0
"""Components whose probability is below exp(LOG_NEGLIGIBLE) in all rows are left out of moments and quantiles. More
change nothing that float64 can tell, and take longer."""
SMALLEST_SHARE = 1e-300
"""Stands for a probability of 0 of numbers that are no atoms, so that their distribution exists."""


@dataclass(frozen=True, eq=False)
class CategoryColumn:
    """A column of L categories, with the numbers 0 … L − 1.

    Parameters
    ----------
    probabilities : (K, L)
        Those of the categories in each of K components.
    """

    probabilities: Tensor


@dataclass(frozen=True, eq=False)
class NumberColumn:
    """A column of numbers, some of which may be atoms: values that have a probability of their own.

    Parameters
    ----------
    map : ColumnMap, default=ColumnMap()
        To the real line, for the numbers that are no atoms.
    atoms : (A,), default=()
        In increasing order.
    probabilities : (K, 1 + A), default=None
        In each of K components: first that of a number that is no atom, then that of each atom. None without atoms.
    """

    map: ColumnMap = field(default_factory=ColumnMap)
    atoms: Sequence[float] = ()
    probabilities: Tensor | None = None


Column = CategoryColumn | NumberColumn


class _Model(NamedTuple):
    """All columns together."""

    weights: Tensor  # (K,)
    log_weights: Tensor  # (K,)
    machines: tuple[RTBMDistribution, ...]  # K, of the numbers on the line; none without columns of numbers
    columns: tuple[Column, ...]

    @property
    def numbers(self) -> list[int]:
        """The columns of numbers."""
        return [i for i, column in enumerate(self.columns) if isinstance(column, NumberColumn)]

    def log_joint(self, x: Tensor) -> Tensor:
        """The log of weight times density of each component (n, K) for rows x (n, d), with gaps integrated out."""
        y, log_slope = self.line(x)
        result = self.log_weights + self.log_discrete(x)
        if self.machines and not bool(y.isnan().all()):
            result = result + torch.stack([machine.log_prob(y).double() for machine in self.machines], 1)
        return result + log_slope[:, None]

    def line(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of rows x (n, d) on the line (n, numbers), NaN for gaps and atoms, and log slopes (n,)."""
        if not self.numbers:
            return x.new_empty(len(x), 0), x.new_zeros(len(x))
        columns: list[Any] = [self.columns[i] for i in self.numbers]
        parts = [torch.where(self.state(i, x[:, i]) == 0, x[:, i], math.nan) for i in self.numbers]
        y, log_slope = to_line([column.map for column in columns], torch.stack(parts, 1))
        return y, log_slope.sum(1)

    def state(self, i: int, x: Tensor) -> Tensor:
        """The category (n,) of values x (n,) of column i; for numbers 0 or 1 + the number of the atom; −1 for gaps."""
        column = self.columns[i]
        if isinstance(column, CategoryColumn):
            return x.nan_to_num(-1.0).long()
        found = torch.zeros_like(x, dtype=torch.int64)
        for number, atom in enumerate(column.atoms):
            found = torch.where(x == atom, 1 + number, found)
        return found.where(~x.isnan(), -1)

    def log_discrete(self, x: Tensor) -> Tensor:
        """The log probability of categories and atoms in each component (n, K)."""
        result = x.new_zeros(len(x), len(self.log_weights))
        for i, column in enumerate(self.columns):
            if column.probabilities is not None:
                state = self.state(i, x[:, i])
                is_possible = column.probabilities > 0
                log_table = torch.where(is_possible, column.probabilities.where(is_possible, 1.0).log(), -math.inf).mT
                result = result + torch.where(state[:, None] >= 0, log_table[state.clamp(min=0)], 0.0)
        return result


class MixedDistribution(Distribution):
    """The distribution of rows of numbers and categories: a mixture whose components have a machine for the numbers,
    and tables for categories and atoms::

        P(x) = Σ_k w_k Π_j t_kj(state of column j) P_k(numbers that are no atoms)

    The state of a column of categories is the category. That of a column of numbers with atoms is the atom, or that the
    number is none. Rows are tensors of numbers: a category is its number, and NaN is a gap, which is summed or
    integrated out. log_prob is the log of a density in the numbers that are no atoms, times the probability of the
    rest. Conditionals reweigh components, and marginals leave factors out, so both are exact. Means and variances are
    as exact as those of MappedDistribution.

    Parameters
    ----------
    weights : (K,)
        Probabilities of the components.
    machines : sequence of K RTBMDistribution
        The densities of the columns of numbers, in their order, on the line. None if there are no such columns.
    columns : sequence of NumberColumn and CategoryColumn
        What each column is.

    Examples
    --------
    >>> import rtbm
    >>> machines = [rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [b], [0.0]) for b in (2.0, -2.0)]
    >>> colours = CategoryColumn(torch.tensor([[0.9, 0.1], [0.2, 0.8]]))
    >>> rows = MixedDistribution([0.5, 0.5], machines, [NumberColumn(), colours])
    >>> rows.conditional({0: 2.0}).category(0).probs.round(decimals=3)
    tensor([0.2000, 0.8000], dtype=torch.float64)
    >>> rows.conditional({1: 0.0}).mean.round(decimals=3)
    tensor([-1.2730], dtype=torch.float64)
    >>> rows.sample((2,)).shape
    torch.Size([2, 2])
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support: Any = constraints.real_vector
    has_rsample = False
    rsample = refuse_rsample
    _repr_html_ = distribution_html

    def __init__(self, weights: Any, machines: Sequence[RTBMDistribution], columns: Sequence[Column]):
        checked = as_real(weights, "weights").double()
        check_vector(checked, "weights", checked.numel())
        device, K = checked.device, len(checked)
        own = tuple(_checked_column(column, i, K, device) for i, column in enumerate(columns))
        n_numbers = sum(isinstance(column, NumberColumn) for column in own)
        if not own or [machine.n_visible for machine in machines] != [n_numbers] * (K if n_numbers else 0):
            raise InvalidInputError(
                f"machines must be {K if n_numbers else 0}, one for each weight, with {n_numbers} visible units, one "
                f"for each column of numbers, got {list(machines)!r}"
            )
        _check_table(checked[None], "weights")
        model = _Model(checked, checked.log(), tuple(machines), own)
        self._set(model, [], list(range(len(own))), torch.zeros(0, dtype=torch.float64, device=device))

    def _set(self, model: _Model, known: list[int], others: list[int], values: Tensor) -> "MixedDistribution":
        self._model, self._known, self._others = model, known, others
        self._values = values.reshape(values.shape[:-1].numel(), len(known))
        super().__init__(values.shape[:-1], torch.Size([len(others)]), validate_args=False)
        return self

    def _make(self, known: list[int], others: list[int], values: Tensor) -> "MixedDistribution":
        return MixedDistribution.__new__(MixedDistribution)._set(self._model, known, others, values)

    def __repr__(self) -> str:
        kinds = [type(self._model.columns[i]).__name__ for i in self._others]
        return f"MixedDistribution(batch_shape={tuple(self.batch_shape)}, {kinds})"

    @property
    def n_visible(self) -> int:
        """The number of columns."""
        return len(self._others)

    @property
    def components(self) -> tuple[RTBMDistribution, ...]:
        """The machines of the columns of numbers."""
        return self._model.machines

    @property
    def weights(self) -> Tensor:
        """The probabilities of the components (K,), without known values."""
        return self._model.weights

    @property
    def columns(self) -> list[Column]:
        """What each column is."""
        return [self._model.columns[i] for i in self._others]

    @classmethod
    def of_numbers(cls, density: Any, maps: Sequence[ColumnMap]) -> "MixedDistribution":
        """A machine or a mixture, whose columns have these maps, as a distribution of columns of numbers."""
        mixture = density if isinstance(density, RTBMMixture) else RTBMMixture([1.0], [density])
        return cls(mixture.weights, mixture.components, [NumberColumn(own) for own in maps])

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self._values.device

    def marginal(self, indices: int | Iterable[int]) -> "MixedDistribution":
        """The distribution of some columns, in that order."""
        others = [self._others[i] for i in check_indices(indices, len(self._others))]
        if not others:
            raise InvalidInputError("indices must name a column or more")
        return self._make(self._known, others, self._values.reshape(*self.batch_shape, len(self._known)))

    def conditional(self, values: Mapping[int, Any]) -> "MixedDistribution":
        """The distribution of the other columns, given values of some: {index: value}.

        Tensors of values (...) give the distributions of many rows at once. NaN entries are unknown.
        """
        new, rest, numbers = check_known(values, len(self._others), self.device)
        _check_categories(numbers, [self.columns[i] for i in new], new)
        if self._known and self.batch_shape:
            raise InvalidInputError("this is a batch of conditionals already: give all values to conditional at once")
        before = self._values.reshape(-1).expand(*numbers.shape[:-1], -1)
        known = [*self._known, *(self._others[i] for i in new)]
        return self._make(known, [self._others[i] for i in rest], torch.cat([before, numbers], -1))

    def _rows(self) -> Tensor:
        """Rows (n, d) of all columns with the known values."""
        x = self._values.new_full((len(self._values), len(self._model.columns)), math.nan)
        x[:, self._known] = self._values
        return x

    @cached_with_graph
    def _log_shares(self) -> Tensor:
        """The log of the probability of each component (n, K), given the known values."""
        return (self._log_joint - self._log_evidence[:, None]).log_softmax(1)

    @cached_with_graph
    def _log_joint(self) -> Tensor:
        return self._model.log_joint(self._rows())

    def set_log_joint(self, log_joint: Tensor) -> None:
        """Set the log of weight times density of each component (n, K) at the known values, if it is known already."""
        self._log_joint = log_joint

    @property
    def _log_evidence(self) -> Tensor:
        """log P (n,) of the known values."""
        evidence = self._log_joint.logsumexp(1)
        if not bool((evidence.detach() > -math.inf).all()):
            raise InvalidInputError(
                "values must be possible, got a row beyond its bounds, or with a category of probability 0"
            )
        return evidence

    @property
    def shares(self) -> Tensor:
        """The probabilities of the components (..., K), given the known values."""
        return self._log_shares.exp().reshape(*self.batch_shape, len(self._model.log_weights))

    def log_prob(self, value: Any) -> Tensor:
        """log P(x) for x (..., columns) that broadcast against the batch. NaN entries are summed or integrated out."""
        x = check_points(value, "value", self.n_visible, self.device, missing=True)
        _check_categories(x, self.columns, list(range(self.n_visible)))
        shape = broadcast_to_batch(x, self.batch_shape)
        n, known = len(self._values), self._rows()
        rows = known.repeat(shape.numel() // max(n, 1), 1, 1)
        rows[..., self._others] = x.expand(*shape, -1).reshape(len(rows), n, self.n_visible)
        joint = self._model.log_joint(rows.reshape(-1, known.shape[1])).logsumexp(1)
        return (joint.reshape(len(rows), n) - self._log_evidence).reshape(shape)

    def category(self, index: int) -> Categorical:
        """The distribution of a column of categories, or of the atoms of a column of numbers.

        For numbers, 0 is a number that is no atom, and 1 … A are the atoms.
        """
        column = self.columns[check_indices(index, self.n_visible)[0]]
        if column.probabilities is None:
            raise InvalidInputError(f"column {index} has neither categories nor atoms")
        return Categorical(self.shares @ column.probabilities)

    @property
    def mean(self) -> Tensor:
        """The means of columns of numbers (..., columns), NaN for categories."""
        return self._moments(has_variance=False)[0]

    @property
    def variance(self) -> Tensor:
        """The variances of columns of numbers (..., columns), NaN for categories."""
        return self._moments()[1]

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariances (columns, columns) of columns of numbers, NaN for categories; not for many rows at once."""
        self._refuse_batch("covariance_matrix")
        numbers = [i for i, column in enumerate(self.columns) if isinstance(column, NumberColumn)]
        columns: list[Any] = [self.columns[i] for i in numbers]
        shares, means, parts = self.shares, [], []
        for k, smooth in enumerate(self._machines(numbers)):
            own = MappedDistribution(smooth, [column.map for column in columns])
            inner, spread = own.mean.double(), own.covariance_matrix.double()
            tables = [column.probabilities[k] if column.atoms else inner.new_ones(1) for column in columns]
            atoms = [inner.new_tensor(list(column.atoms)) for column in columns]
            share = torch.stack([table[0] for table in tables])
            jumps = torch.stack([table[1:] @ atom for table, atom in zip(tables, atoms, strict=True)])
            squares = torch.stack([table[1:] @ atom.square() for table, atom in zip(tables, atoms, strict=True)])
            mean = share * inner + jumps
            variance = share * (spread.diagonal() + inner.square()) + squares - mean.square()
            parts.append(torch.outer(share, share) * (spread - spread.diagonal().diag()) + variance.diag())
            means.append(mean)
        mean, within = torch.stack(means), torch.stack(parts)
        between = mean - shares @ mean
        found = torch.einsum("k,kij->ij", shares, within) + (shares[:, None] * between).mT @ between
        result = found.new_full((self.n_visible, self.n_visible), math.nan)
        places = torch.tensor(numbers, device=self.device)
        result[places[:, None], places] = found
        return result

    def _machines(self, wanted: Sequence[int]) -> list[RTBMDistribution]:
        """The machine of each component for some columns of numbers, given the known values of one row."""
        model, known = self._model, self._known_numbers
        line = model.line(self._rows())[0][0]
        given = {place: float(line[place]) for place in known if not bool(line[place].isnan())}
        left = [place for place in range(len(model.numbers)) if place not in given]
        places = [left.index(model.numbers.index(self._others[i])) for i in wanted]
        return [(machine.conditional(given) if given else machine).marginal(places) for machine in model.machines]

    def _refuse_batch(self, method: str) -> None:
        if self.batch_shape:
            raise InvalidInputError(f"{method} is for one distribution, this is a batch of conditionals")

    def box_probability(self, low: Any, high: Any) -> Tensor:
        """P(low ≤ x ≤ high) (...) for corners (..., columns), which may be infinite; not for many rows at once.

        Atoms and the numbers of categories count if they lie between the corners, or on them.
        """
        self._refuse_batch("box_probability")
        corners = [
            check_points(end, name, self.n_visible, self.device, infinite=True)
            for end, name in ((low, "low"), (high, "high"))
        ]
        first, last, shape = broadcast(corners[0], corners[1], "low and high")
        is_number = torch.tensor([isinstance(column, NumberColumn) for column in self.columns], device=self.device)
        bounded = is_number & ((first > -math.inf) | (last < math.inf))
        result = first.new_zeros(len(first))
        for pattern in bounded.unique(dim=0):
            rows = (bounded == pattern).all(1).nonzero()[:, 0]
            result[rows] = self._box(first[rows], last[rows], pattern.nonzero()[:, 0].tolist())
        return result.reshape(shape)

    def _box(self, low: Tensor, high: Tensor, bounded: list[int]) -> Tensor:
        """P(low ≤ x ≤ high) (n,), where these columns of numbers have a finite corner."""
        columns: Sequence[Any] = self.columns
        weights = self.shares.expand(len(low), -1)

        def of_states(i: int, states: Tensor, first: int) -> Tensor:
            """The probability (n, K) of those states of a column, from the first one on, that lie in the box."""
            inside = (states >= low[:, [i]]) & (states <= high[:, [i]])
            return inside.double() @ columns[i].probabilities[:, first:].mT

        for i, column in enumerate(columns):
            if isinstance(column, CategoryColumn):
                states = torch.arange(column.probabilities.shape[1], dtype=torch.float64, device=self.device)
                weights = weights * of_states(i, states, 0)
        total = low.new_zeros(len(low))
        with_atoms = [i for i in bounded if columns[i].atoms]
        for chosen in itertools.product((False, True), repeat=len(with_atoms)):  # which columns sit on atoms
            on_atoms = [i for i, is_on in zip(with_atoms, chosen, strict=True) if is_on]
            smooth, part = [i for i in bounded if i not in on_atoms], weights
            for i in with_atoms:
                atoms = low.new_tensor(list(columns[i].atoms))
                part = part * (of_states(i, atoms, 1) if i in on_atoms else columns[i].probabilities[:, 0])
            if smooth:
                maps = [columns[i].map for i in smooth]
                boxes = [
                    MappedDistribution(machine, maps).box_probability(low[:, smooth], high[:, smooth])
                    for machine in self._machines(smooth)
                ]
                part = part * torch.stack(boxes, 1).double()
            total = total + part.sum(1)
        return total

    def within(self, index: int, low: float, high: float) -> "MixedDistribution":
        """The distribution of the other columns, given that a column of numbers lies between low and high.

        It is a mixture over nodes of a quadrature of that column, with up to 16 machines for each machine and each two
        standard deviations of the column given all others; see RANGE_NODES.
        """
        if self._known or self._others != list(range(self.n_visible)):
            raise InvalidInputError("within is for a whole distribution: give ranges before known values")
        (index,) = check_indices(index, self.n_visible)
        column, model = self.columns[index], self._model
        if not isinstance(column, NumberColumn) or not low < high:
            raise InvalidInputError(f"a range must be low < high, of a column of numbers, got {(low, high)!r}")
        place, log_weights, owners, machines = model.numbers.index(index), [], [], []
        left = [i for i in range(len(model.numbers)) if i != place]
        ends = column.map.support
        reach = [column.map.to_line(torch.tensor(end, dtype=torch.float64))[0] for end in (low, high)]
        first = -math.inf if low <= ends[0] else float(reach[0])
        last = math.inf if high >= ends[1] else float(reach[1])
        for k, machine in enumerate(model.machines):
            table = None if column.probabilities is None else column.probabilities[k].log()
            rest = machine.marginal(left) if left else None
            for number, atom in enumerate(column.atoms):
                if low <= atom <= high and table is not None:
                    log_weights.append((model.log_weights[k] + table[1 + number])[None])
                    machines += [rest]
                    owners.append(k)
            y, log_measure = _range_nodes(machine, place, first, last)
            log_mass = machine.marginal(place).log_prob(y[:, None]).double() + log_measure
            log_weights.append(model.log_weights[k] + (0.0 if table is None else table[0]) + log_mass)
            machines += [machine.conditional({place: node}) if left else None for node in y.tolist()]
            owners += [k] * len(y)
        joint = torch.cat(log_weights)
        if not bool(joint.logsumexp(0) > -math.inf):
            raise InvalidInputError(f"column {index} lies between {low!r} and {high!r} with probability 0")
        shares = joint.softmax(0)
        kept = (shares > NEGLIGIBLE_NODE * shares.max()).nonzero()[:, 0]
        owner = torch.tensor(owners, device=self.device)[kept]
        columns = [
            column if column.probabilities is None else replace(column, probabilities=column.probabilities[owner])
            for i, column in enumerate(self.columns)
            if i != index
        ]
        weights = shares[kept] / shares[kept].sum()
        return MixedDistribution(weights, [machines[i] for i in kept.tolist()] if left else [], columns)

    def _moments(self, has_variance: bool = True) -> Tensor:
        """Means and variances (2, ..., columns); the latter are meaningless without `has_variance`."""
        result = self._values.new_full((2, len(self._values), self.n_visible), math.nan)
        for i, column in enumerate(self.columns):
            if isinstance(column, NumberColumn):
                smooth = self._smooth(i)
                values, masses, share = self._atoms(column)
                inner, spread = (part.reshape(-1) for part in smooth._moments(has_variance))
                mean = share * inner + masses @ values
                around = (masses * (values - mean[:, None]).square()).sum(1)
                result[:, :, i] = torch.stack([mean, share * (spread + (inner - mean).square()) + around])
        return result.reshape(2, *self.batch_shape, self.n_visible)

    def _atoms(self, column: NumberColumn) -> tuple[Tensor, Tensor, Tensor]:
        """The atoms (A,) of a column, their probabilities (n, A), and that of all other numbers (n,)."""
        values = torch.tensor(list(column.atoms), dtype=torch.float64, device=self.device)
        if column.probabilities is None:
            n = len(self._values)
            return values, self._values.new_zeros(n, 0), self._values.new_ones(n)
        masses = self._log_shares.exp() @ column.probabilities
        return values, masses[:, 1:], masses[:, 0]

    def _smooth(self, i: int) -> MappedDistribution:
        """The distributions of column i among numbers that are no atoms, for each row."""
        own, place = self.columns[i], self._model.numbers.index(self._others[i])
        assert isinstance(own, NumberColumn)
        rows = self._rows()
        log_weights = self._model.log_weights + self._model.log_discrete(rows)
        if own.probabilities is not None:
            log_weights = log_weights + own.probabilities[:, 0].clamp(min=SMALLEST_SHARE).log()
        kept = (self._log_shares.detach().amax(0) > LOG_NEGLIGIBLE).nonzero()[:, 0].tolist()
        chosen = [self._model.machines[k] for k in kept]
        mixture = RTBMMixture.from_logits(torch.zeros_like(self._model.log_weights[kept]), chosen)
        known, values = self._known_numbers, self._model.line(rows)[0]
        machines = mixture._dense_machines()[1]
        line = ConditionalDistribution(mixture, log_weights[:, kept], machines, known, [place], values[:, known])
        return MappedDistribution(line, [own.map])

    @property
    def _known_numbers(self) -> list[int]:
        """The places of known columns among the columns of numbers."""
        return [place for place, i in enumerate(self._model.numbers) if i in self._known]

    def cdf(self, value: Any) -> Tensor:
        """P(x ≤ value) (...) of one column of numbers, for values (..., 1) that broadcast against the batch."""
        column = self._one_number("cdf")
        x = check_points(value, "value", 1, self.device, infinite=True)
        shape, n = broadcast_to_batch(x, self.batch_shape), len(self._values)
        draws = x[..., 0].expand(shape).reshape(shape.numel() // max(n, 1), n)
        values, masses, share = self._atoms(column)
        below = (masses * (values <= draws[..., None])).sum(-1)
        return (below + share * self._smooth(0).cdf(draws[..., None])).reshape(shape)

    def icdf(self, value: Any) -> Tensor:
        """The quantiles p.shape + (..., 1) of probabilities p, of one column of numbers: the least x with cdf ≥ p."""
        column, p = self._one_number("icdf"), check_probabilities(value, self.device)
        smooth, (values, masses, share), n = self._smooth(0), self._atoms(column), len(self._values)
        levels, share = p.reshape(-1).expand(n, -1), share[:, None]
        below = torch.stack([smooth.cdf(atom.expand(n, 1)) for atom in values], 1) if len(values) else masses
        last = share * below + masses.cumsum(1)  # of the jumps
        if len(values):  # without other numbers, all quantiles are atoms, also if probabilities sum to less than p
            levels = torch.where(share > 0, levels, torch.minimum(levels, last[:, -1:]))
        passed = last[:, None] < levels[..., None]  # (n, q, A): atoms that lie below the quantile
        rest = ((levels - (passed * masses[:, None]).sum(2)) / share.clamp(min=SMALLEST_SHARE)).clamp(0, 1)
        line = smooth._batch()._quantiles(torch.minimum(rest, 1 - rest), rest > 0.5, "icdf")
        result = smooth._from_line(line[..., None])[..., 0]
        hit = ~passed & (levels[..., None] >= (last - masses)[:, None])
        for number, atom in enumerate(values):
            result = torch.where(hit[..., number], atom, result)
        return result.mT.reshape(*p.shape, *self.batch_shape, 1)

    def _one_number(self, method: str) -> NumberColumn:
        if self.n_visible != 1 or not isinstance(self.columns[0], NumberColumn):
            raise InvalidInputError(f"{method} needs one column of numbers: take a marginal(index) first")
        return self.columns[0]

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent exact draws of shape sample_shape + (..., columns)."""
        shape, n = as_shape(sample_shape), len(self._values)
        row = torch.arange(n, device=self.device).repeat(shape.numel())
        draws = self._values.new_full((len(row), self.n_visible), math.nan)
        if len(row):
            chosen = torch.multinomial(self._log_shares.exp()[row], 1, generator=generator)[:, 0]
            self._draw_numbers(draws, row, chosen, generator)
            for i, column in enumerate(self.columns):
                if column.probabilities is not None:
                    state = torch.multinomial(column.probabilities[chosen], 1, generator=generator)[:, 0]
                    put = state.double()
                    if isinstance(column, NumberColumn):
                        places = torch.tensor([math.nan, *column.atoms], dtype=torch.float64, device=self.device)
                        put = torch.where(state > 0, places[state], draws[:, i])
                    draws[:, i] = put
        return draws.reshape(*shape, *self.batch_shape, self.n_visible)

    def _draw_numbers(self, draws: Tensor, row: Tensor, chosen: Tensor, generator: torch.Generator | None) -> None:
        """Fill in the columns of numbers of draws from rows `row` (m,) and components `chosen` (m,)."""
        model = self._model
        wanted = [i for i, column in enumerate(self.columns) if isinstance(column, NumberColumn)]
        if not wanted:
            return
        others, known = [model.numbers.index(self._others[i]) for i in wanted], self._known_numbers
        values = model.line(self._rows())[0][:, known]
        for k in chosen.unique().tolist():
            own = (chosen == k).nonzero()[:, 0]
            line = model.machines[k]._conditionals(known, others, values[row[own]]).sample((), generator).double()
            for place, i in enumerate(wanted):
                column: Any = self.columns[i]
                draws[own, i] = column.map.from_line(line[:, place])


def _range_nodes(machine: RTBMDistribution, place: int, first: float, last: float) -> tuple[Tensor, Tensor]:
    """Nodes (q,) of a column of a machine between two ends, and the logarithms of their weights (q,)."""
    covariance = machine.lattice.covariance.detach().double()
    unit = float(torch.linalg.inv(covariance)[place, place].rsqrt())
    centre, scale = float(machine.mean[place]), float(machine.variance[place].sqrt())
    begin, end = max(first, centre - RANGE_REACH * scale), min(last, centre + RANGE_REACH * scale)
    if begin >= end:
        empty = covariance.new_empty(0)
        return empty, empty
    panels = math.ceil((end - begin) / (2 * unit))
    if panels > MAX_RANGE_PANELS:
        raise InvalidInputError(
            "a range is too wide for a column that is nearly a function of the others: give a narrower one, or a value"
        )
    roots, shares = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(RANGE_NODES))
    edges = torch.linspace(begin, end, panels + 1, dtype=torch.float64)
    half = 0.5 * edges.diff()[:, None]
    nodes, weights = edges[:-1, None] + half * (1 + roots), half * shares
    return nodes.reshape(-1).to(covariance.device), weights.reshape(-1).log().to(covariance.device)


def components(distribution: Any) -> list[RTBMDistribution]:
    """The machines of a density; those of its base if columns are mapped."""
    distribution = getattr(distribution, "base", distribution)
    has_several = isinstance(distribution, RTBMMixture | MixedDistribution)
    return list(distribution.components) if has_several else [distribution]


def _checked_column(column: Any, i: int, n_components: int, device: torch.device) -> Column:
    """The column with probabilities in float64 on the device."""
    if not isinstance(column, Column):
        raise InvalidInputError(f"columns[{i}] must be a NumberColumn or a CategoryColumn, got {column!r}")
    atoms = [float(atom) for atom in column.atoms] if isinstance(column, NumberColumn) else []
    if atoms != sorted(set(atoms)) or not all(map(math.isfinite, atoms)):
        raise InvalidInputError(f"columns[{i}].atoms must be finite and in increasing order, got {atoms}")
    if isinstance(column, NumberColumn) and not atoms:
        return NumberColumn(column.map)
    name = f"columns[{i}].probabilities"
    table = as_real([] if column.probabilities is None else column.probabilities, name).double().to(device)
    n_states = 1 + len(atoms) if atoms else max(table.shape[-1], 1)
    if table.shape != (n_components, n_states):
        raise InvalidInputError(f"{name} must have the shape {(n_components, n_states)}, got {tuple(table.shape)}")
    _check_table(table, name)
    return NumberColumn(column.map, atoms, table) if isinstance(column, NumberColumn) else CategoryColumn(table)


def _check_table(table: Tensor, name: str) -> None:
    if bool((table.detach() < 0).any()) or bool(((table.detach().sum(1) - 1).abs() > 1e-5).any()):
        raise InvalidInputError(f"{name} must be probabilities with sum 1, got {table.detach().tolist()}")


def _check_categories(x: Tensor, columns: Sequence[Column], numbers: Sequence[int]) -> None:
    """Check that values (..., columns) of columns of categories, which have these numbers, are categories."""
    for place, (number, column) in enumerate(zip(numbers, columns, strict=True)):
        if isinstance(column, CategoryColumn):
            own, n = x[..., place], column.probabilities.shape[1]
            wrong = own[~(own.isnan() | ((own >= 0) & (own < n) & (own == own.floor())))]
            if wrong.numel():
                raise InvalidInputError(
                    f"column {number} must hold the numbers of categories, 0 to {n - 1}, or NaN, got {float(wrong[0])}"
                )
