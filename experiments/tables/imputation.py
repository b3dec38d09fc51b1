"""Beyond the paper: cells of real tables that are hidden and then filled in, beside other methods."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.impute import KNNImputer
from sklearn.linear_model import BayesianRidge, LogisticRegression

from experiments.tables.comparison import QUICK_ROWS, Rows, Score, TableComparison, available
from experiments.tables.mixed import DRAWN, KNOWN, committee, number_columns, read_table
from rtbm.common import Floats

TABLES = available((*KNOWN, *DRAWN[:5]))
PATTERNS = {"20 %": (0.2, False), "40 %": (0.4, False), "20 % by rank": (0.2, True), "40 % by rank": (0.4, True)}
"""The share of cells that are hidden, and whether it rises with the rank of the first column of numbers."""
TABLE_ROWS = 400
"""Most rows of a table. More rows take longer."""
N_DRAWS, QUICK_DRAWS = 20, 5
"""Draws of a row's hidden cells. More make the energy score less noisy."""
CHAIN_ROUNDS, DONORS = 5, 5
"""Rounds over all columns of chained equations, for guesses and again before the first draw, as in the package mice;
and the rows with nearly the same prediction, one of which gives its number to a draw."""
FOREST_ROUNDS, N_TREES, QUICK_TREES = 5, 50, 10
"""Most rounds of forests, and their trees. More trees make them a little better, and slower."""


class Holes(Rows):
    """A complete table X, and the pattern y of cells to hide: a value of PATTERNS."""

    def split(self, seed: int, stratify: bool) -> tuple[Rows, Rows]:
        """The table with gaps, and the complete one, both with what is hidden (n, d) in the place of targets."""
        frame: Any = self.X
        share, by_rank = self.y
        chance, known = np.full(len(frame), share), number_columns(frame)[0]
        if by_rank:
            chance = 2 * share * frame[known].rank(pct=True).to_numpy()
        hidden = np.random.default_rng(seed).random(frame.shape) < chance[:, None]
        if by_rank:
            hidden[:, frame.columns.get_loc(known)] = False
        return Rows(frame.mask(hidden), hidden), Rows(frame, hidden)


@functools.cache
def load(case: str, quick: bool) -> Rows:
    """A table and a pattern."""
    name, pattern = case.split(", ")
    return Holes(read_table(name)[: QUICK_ROWS if quick else TABLE_ROWS], PATTERNS[pattern])


def to_table(frame: Any) -> Floats:
    """Numbers and codes of categories (n, d), NaN for gaps."""
    numbers = number_columns(frame)
    columns = [frame[c] if c in numbers else frame[c].cat.codes.replace(-1, np.nan) for c in frame]
    return np.stack([column.to_numpy(np.float64) for column in columns], axis=1)


class Coding(NamedTuple):
    """Points for the rows of a table: standardised numbers, and 1/√2 in the place of a category, 0 in those of others.

    So the distance of two categories is 1.
    """

    means: Floats  # (d,)
    scales: Floats  # (d,)
    sizes: list[int]  # numbers of categories; 0 for numbers

    @classmethod
    def of(cls, frame: Any) -> "Coding":
        """That of a table."""
        table, numbers = to_table(frame), number_columns(frame)
        sizes = [0 if name in numbers else len(frame[name].cat.categories) for name in frame]
        return cls(np.nanmean(table, axis=0), np.nanstd(table, axis=0), sizes)

    def repeat(self, cells: np.ndarray) -> np.ndarray:
        """Cells (n, d) as often as they have coordinates (n, D)."""
        return np.repeat(cells, np.maximum(self.sizes, 1), axis=1)

    def encode(self, table: Floats) -> Floats:
        """Points (n, D); NaN for gaps."""
        parts = []
        for x, mean, scale, size in zip(table.T, *self, strict=True):
            part = (x[:, None] == np.arange(size)) / np.sqrt(2) if size else (x[:, None] - mean) / scale
            parts.append(np.where(np.isnan(x)[:, None], np.nan, part))
        return np.hstack(parts)

    def decode(self, points: Floats) -> Floats:
        """The table (n, d) of points, with the category of the largest coordinate."""
        parts = np.split(points, np.cumsum(np.maximum(self.sizes, 1))[:-1], axis=1)
        columns = [
            part.argmax(axis=1) if size else part[:, 0] * scale + mean
            for part, mean, scale, size in zip(parts, *self, strict=True)
        ]
        return np.stack(columns, axis=1)


class Filled(NamedTuple):
    """The table (n, d) with the best guess in each gap, and draws of it."""

    guess: Floats
    draws: list[Floats]


def rtbm(frame: Any, seed: int, quick: bool) -> Filled:
    """The best candidate: means and likeliest categories, and draws from the joint conditional distribution."""
    import pandas as pd

    model, n_draws = committee(seed, quick).set_params(combine="single").fit(frame), _n_draws(quick)
    copies = pd.concat([frame] * n_draws, ignore_index=True)  # the work for rows with the same gaps is done once
    draws = np.split(to_table(model.impute(copies, "sample", random_state=seed)), n_draws)
    return Filled(to_table(model.impute(frame)), draws)


Predict = Callable[[bool, Floats, Floats, Floats], Floats]
"""predict(whether y holds categories, X, y, X of other rows): y of other rows."""


def next_round(table: Floats, known: Floats, coding: Coding, predict: Predict) -> Floats:
    """A table in which the gaps of the known cells are predicted from all others, column by column."""
    table, gaps = table.copy(), np.isnan(known)
    for j in gaps.sum(axis=0).argsort(kind="stable"):
        is_gap, y = gaps[:, j], known[~gaps[:, j], j]
        if is_gap.any() and (y != y[0]).any():
            X = coding.encode(table)[:, ~coding.repeat(np.arange(table.shape[1])[None] == j)[0]]
            table[is_gap, j] = predict(coding.sizes[j] > 0, X[~is_gap], y, X[is_gap])
    return table


def chained(frame: Any, seed: int, quick: bool) -> Filled:
    """Linear and logistic equations, column by column. Draws are numbers of other rows with nearly the same prediction.

    This is the usual form of multiple imputation by chained equations. Draws are successive rounds.
    """
    coding, known, rng = Coding.of(frame), to_table(frame), np.random.default_rng(seed)

    def predict(is_category: bool, X: Floats, y: Floats, new: Floats) -> Floats:
        model = LogisticRegression(max_iter=200) if is_category else BayesianRidge()
        return model.fit(X, y).predict(new)

    def draw(is_category: bool, X: Floats, y: Floats, new: Floats) -> Floats:
        if is_category:
            model = LogisticRegression(max_iter=200).fit(X, y)
            passed = model.predict_proba(new).cumsum(axis=1) < rng.random((len(new), 1))
            return model.classes_[np.minimum(passed.sum(axis=1), len(model.classes_) - 1)]
        line = BayesianRidge().fit(X, y)
        slope = rng.multivariate_normal(line.coef_, line.sigma_)
        away = np.abs(line.predict(X) - (new @ slope + line.intercept_)[:, None])
        nearest_rows = away.argsort(axis=1)[:, :DONORS]
        return y[nearest_rows[np.arange(len(new)), rng.integers(nearest_rows.shape[1], size=len(new))]]

    guess = columns_alone(frame, seed, quick).guess
    for _ in range(CHAIN_ROUNDS):
        guess = next_round(guess, known, coding, predict)
    draws = [guess]
    for _ in range(CHAIN_ROUNDS + _n_draws(quick)):
        draws.append(next_round(draws[-1], known, coding, draw))
    return Filled(guess, draws[1 + CHAIN_ROUNDS :])


def nearest(frame: Any, seed: int, quick: bool) -> Filled:
    """The mean of the five nearest rows."""
    coding = Coding.of(frame)
    guess = coding.decode(KNNImputer().fit_transform(coding.encode(to_table(frame))))
    return Filled(guess, [guess])


def forests(frame: Any, seed: int, quick: bool) -> Filled:
    """Random forests, column by column, until the guesses change more than in the last round (missForest)."""
    coding, known = Coding.of(frame), to_table(frame)
    options: dict[str, Any] = {"n_estimators": QUICK_TREES if quick else N_TREES, "random_state": seed}

    def predict(is_category: bool, X: Floats, y: Floats, new: Floats) -> Floats:
        model = RandomForestClassifier(**options) if is_category else RandomForestRegressor(**options)
        return model.fit(X, y).predict(new)

    guess, change = columns_alone(frame, seed, quick).guess, np.inf
    for _ in range(FOREST_ROUNDS):
        after = next_round(guess, known, coding, predict)
        last, change = change, float(((coding.encode(after) - coding.encode(guess)) ** 2).sum())
        if change >= last:
            break
        guess = after
    return Filled(guess, [guess])


def columns_alone(frame: Any, seed: int, quick: bool) -> Filled:
    """The mean or the most frequent category of each column; draws are values of other rows."""
    coding, table, rng = Coding.of(frame), to_table(frame), np.random.default_rng(seed)
    guess, draws = table.copy(), [table.copy() for _ in range(_n_draws(quick))]
    for j, size in enumerate(coding.sizes):
        is_gap = np.isnan(table[:, j])
        values = table[~is_gap, j]
        guess[is_gap, j] = np.bincount(values.astype(int)).argmax() if size else values.mean()
        for draw in draws:
            draw[is_gap, j] = rng.choice(values, is_gap.sum())
    return Filled(guess, draws)


def _n_draws(quick: bool) -> int:
    return QUICK_DRAWS if quick else N_DRAWS


METHODS: dict[str, Callable[[Any, int, bool], Filled]] = {
    "RTBM": rtbm,
    "chained equations": chained,
    "random forests": forests,
    "nearest rows": nearest,
    "columns alone": columns_alone,
}


def evaluate(method: str, train: Rows, test: Rows, seed: int, quick: bool) -> dict[str, float]:
    """The energy score of hidden cells by draws, and the errors of numbers and categories by the best guess."""
    filled, hidden = METHODS[method](train.X, seed, quick), test.y
    coding, truth = Coding.of(test.X), to_table(test.X)
    is_number = np.array(coding.sizes) == 0
    errors = ((filled.guess - truth) / coding.scales)[:, is_number][hidden[:, is_number]]
    right = (filled.guess == truth)[:, ~is_number][hidden[:, ~is_number]]
    points = np.stack([coding.encode(draw) for draw in filled.draws])
    away = np.linalg.norm((points - coding.encode(truth)) * coding.repeat(hidden), axis=2).mean(axis=0)
    pairs = [np.linalg.norm(points[i] - points[:i], axis=2).sum(axis=0) for i in range(1, len(points))]
    spread = np.sum(pairs, axis=0) / max(len(points) * (len(points) - 1), 1)
    return {
        "energy": float((away - spread)[hidden.any(axis=1)].mean()),
        "rmse": float(np.sqrt((errors**2).mean())),
        "accuracy": float(right.mean()),
    }


COMPARISON = TableComparison(
    title="Gaps in tables of numbers and categories",
    about="Cells of complete tables of numbers and categories are hidden, and filled in by models that are fitted to "
    f"the table with gaps: {len(TABLES)} of the tables of the experiment `mixed`, at most {TABLE_ROWS} rows of each. "
    "20 % or 40 % of the cells are hidden, completely at random, or (by rank) with a probability that rises with the "
    "rank of the first column of numbers, which is always seen. The energy score is the mean distance between a row's "
    f"hidden cells and draws of them, less half the mean distance between draws ({N_DRAWS} of them), with standardised "
    "numbers, and a distance of 1 between categories; small is good. Methods without draws have one point, whose "
    "energy score is its distance, so they are at a disadvantage by this score, but not by the others: the error of "
    "the best guess of numbers, in standard deviations, and the share of categories that are right. RTBM is "
    'RTBMDensityCV with one candidate, refitted (combine="single"), because the average of all takes minutes for the '
    "gaps of one table; it finds atoms and rounded columns itself. Chained equations are those of the R "
    "package mice, written anew: linear for numbers, with draws by predictive mean matching, and logistic for "
    "categories. They stand for IterativeImputer of scikit-learn, which has one kind of regression for all columns. "
    "Random forests are those of missForest, nearest rows are "
    "KNNImputer's five, and columns alone give mean and mode, and draws of other rows' values. Ranks are over tables "
    "and patterns. Errors are over patterns of gaps in the same rows, and do not tell what other rows would give.",
    load=load,
    tables=[f"{name}, {pattern}" for name in TABLES for pattern in PATTERNS],
    quick_tables=("iris, 40 %",),
    methods=tuple(METHODS),
    evaluate=evaluate,
    scores=(
        Score("energy", "energy score of a row's gaps", is_error=True),
        Score("rmse", "root mean squared error of numbers", is_error=True),
        Score("accuracy", "share of categories that are right"),
    ),
)
EXPERIMENT = COMPARISON.experiment(seeds=(2, 2), seconds=(3600, 12))
