"""Density estimation by a committee of machines that cross-validation chooses and weighs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import joblib
import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.base import clone
from sklearn.utils import check_random_state

from rtbm.common import Floats
from rtbm.distributions import ColumnMap, RTBMMixture
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import (
    check_flag,
    check_jobs,
    distinct_labelled,
    distinct_rows,
    forget,
    is_constant,
    keep_arguments,
)
from rtbm.estimators.density.bounds import Bounds, make_bounds
from rtbm.estimators.density.estimator import RTBMDensity
from rtbm.estimators.density.fitted import FittedDensity, component_weights, components
from rtbm.estimators.density.margins import MARGINS, SHAPES, make_maps, map_rows
from rtbm.estimators.density.predictions import PredictingDensity
from rtbm.estimators.parallel import THREADED_ROWS, in_parallel, threads_for, without_warnings
from rtbm.estimators.progress import counting_bar
from rtbm.estimators.sources import is_source
from rtbm.parameters import count
from rtbm.training.families import Density
from rtbm.training.families.dense import MAX_DENSE_UNITS
from rtbm.validation import check_choice, check_integer

ONE_FEATURE: tuple[dict[str, Any], ...] = (
    {"n_hidden": 3},
    {"n_hidden": 2, "n_components": 2},
    {"n_hidden": 1, "n_components": 4},
    {"n_hidden": 2, "n_components": 2, "regularization": 0.2},
    {"n_hidden": 2, "n_components": 4, "regularization": 0.1},
    {"n_hidden": 2, "n_components": 4, "regularization": 0.01},
    {"n_hidden": 2, "n_components": 4, "regularization": 0.01, "fallback": "gaussians"},
    {"n_hidden": 6, "smoothness": 30.0, "regularization": 0.01, "max_iter": 100},
)
SEVERAL_FEATURES: tuple[dict[str, Any], ...] = (
    {"n_hidden": 1},
    {"n_hidden": 2},
    {"n_hidden": 1, "n_components": 2, "fallback": "gaussians"},
    {"n_hidden": 1, "n_components": 4, "fallback": "gaussians"},
    {"n_hidden": 1, "n_components": 4, "regularization": 10.0, "fallback": None},
    {"n_hidden": 1, "n_components": 8, "regularization": 0.1, "fallback": "gaussians", "max_iter": 60},
    {"n_hidden": 1, "n_components": 16, "regularization": 0.02, "fallback": "gaussians", "max_iter": 60},
)
MANY_FEATURES: tuple[dict[str, Any], ...] = (
    {"n_hidden": 1, "n_components": 4, "regularization": 0.02, "fallback": "gaussians", "max_iter": 60},
    {"n_hidden": 1, "n_components": 16, "regularization": 0.3, "fallback": "gaussians", "max_iter": 60},
    {"n_hidden": 1, "n_components": 16, "regularization": 0.002, "fallback": "gaussians", "max_iter": 60},
)
WIDE_TABLES: tuple[dict[str, Any], ...] = (
    {"n_hidden": 1, "n_components": 8, "regularization": 10.0, "fallback": None, "max_iter": 60},
)
"""The default candidates for one feature and for several, from smooth and simple to sharp and rich, and those that join
them for three features or more, and for twenty or more."""
EFFORT = {"n_init": 1, "tol": 1e-6}
"""Starts and tolerance of candidates. Averages over folds do not gain from the last digits of a fit."""
FEW_ROWS = 1000
"""With fewer rows of one or two features, default candidates are not compared with Gaussians. With more, the comparison
saves the last hundredths of a nat where data are Gaussian."""
TRAINING_SHARE = 0.8
"""The share of rows in the training data of a fold, for the comparison of rows and parameters."""
JUDGED_ROWS = 20_000
"""With more distinct rows, candidates are judged on a sample of this size, and those with a share are fitted to all
rows. More rows tell candidates apart that differ by less, and take longer."""
COMBINATIONS = ("auto", "stack", "single")
FIRST_FOLDS, FAR_BEHIND, NEAR = 2, 3.0, 2.0
"""After FIRST_FOLDS folds, candidates that are more than FAR_BEHIND standard errors behind the best are dropped, and so
are those whose density is the same as another's. After all folds, those within NEAR standard errors of the best get
weights. Larger values keep more, and take longer."""
MARGINS_BEHIND, MARGINS_COST = 0.5, 1.0
"""Margins with which a few candidates are more than MARGINS_BEHIND standard errors behind are dropped. Others must gain
MARGINS_COST for each parameter of their maps, and at most HIGHEST_COST, to be preferred to simpler ones."""
NEGLIGIBLE_LOSS, GAIN_ROWS = 0.005, 400
"""A single candidate replaces the average if it costs at most this much log-likelihood of a row. What averages gain is
found from about GAIN_ROWS rows."""
COST, HIGHEST_COST = 0.25, 10.0
"""The log-likelihood that a candidate must gain for each parameter, and at most in all, to get a weight. Lower costs
favour larger candidates."""
SMALLEST_SHARE = 1e-3
"""Candidates of less weight are left out."""
OUT_OF_REACH = 30.0
"""Where log P of a row leaves float64, it counts as this much lower than that of all other rows."""
SAME = 1e-6
"""Candidates whose log P differs by at most this are the same density, and count once."""
PASSES, PASS_SECONDS, PRODUCT_SECONDS = 70, 1e-4, 8e-10
"""For the expected time: passes over the data in a fit, and the seconds of a pass for each machine, and for each
product of two columns of a row."""
STACKING_ITERATIONS = 2000
"""EM iterations for the weights of candidates; they end earlier if the weights stand still."""


class RTBMDensityCV(PredictingDensity):
    """A committee: a weighted average of machines of several sizes that cross-validation chooses.

    Each candidate is fitted once without each fold of the data, and judged by the likelihood of that fold. Candidates
    that are far behind after two folds are dropped. The candidates within two standard errors of the best get weights
    that maximise the log-likelihood of the held-out folds (stacking), less a charge for each free parameter. The fitted
    density is the mixture of all their fits. So the data decide on size and smoothness, and the average has less
    variance than a single fit. With more than 20,000 distinct rows, candidates are judged on a sample of those, and the
    ones with a weight are fitted to all rows.

    Parameters
    ----------
    candidates : sequence of dict, default=None
        Arguments of `RTBMDensity` to try, other than those of the committee itself; None for machines and
        mixtures from smooth and simple to sharp and rich.
    cv : int, splitter or iterable, default=5
        The number of folds, a splitter of scikit-learn, or pairs (training rows, test rows). Every row has to be in one
        test set.
    combine : "auto", "stack" or "single", default="auto"
        "stack" averages the best candidates with weights, and their fits without each fold. "single" fits one candidate
        to all rows: the best. "auto" does this with the smallest candidate that loses at most 0.005 nats a row against
        the average, and averages if there is none.
    targets : sequence of int, default=None
        Columns that are to be predicted from the others. Candidates are then judged, and weighed, by the likelihood of
        these columns given the others, instead of that of all columns.
    phase : "I" or "II", default="I"
    bounds : pair or list of pairs, default=None
    margins : "auto", "yeo-johnson", "learned" or None, default="auto"
        As in `RTBMDensity`. "auto" lets the held-out folds decide, with maps that are learned without them; one feature
        is not mapped.
    drop_constant : bool, default=False
        As in `RTBMDensity`.
    random_state : int, RandomState or None, default=None
        The same integer gives the same result, bit for bit.
    n_jobs : int, default=None
        The number of fits that run at the same time, through joblib and its active backend. -1 for all cores.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    distribution_ : RTBMDistribution, RTBMMixture or MappedDistribution
        The fitted density of the features as given; with `bounds` or margins a MappedDistribution.
    margins_, combined_ : str
        The margins, and the way to combine candidates, that were chosen.
    candidates_ : list of dict
        What was tried.
    held_out_ : (n_candidates,)
        The mean log-likelihood of each candidate on folds that it has not seen (of the targets given the other columns,
        if there are targets): two folds, or all.
    candidate_weights_ : (n_candidates,)
        The share of each candidate.
    is_gaussian_, converged_ : bool
        Whether all fits that have a share were replaced by Gaussians, and whether all of them converged. Fits that have
        not are taken as they are, since cross-validation judges them so.
    n_hidden_, n_iter_ : int
        The largest number of hidden units, and of iterations, among those fits.
    n_parameters_, n_features_in_ : int
        The number of free parameters of all of them, and of features.

    Examples
    --------
    >>> from rtbm import RTBMDensityCV, datasets
    >>> X = datasets.gamma.sample(300, seed=1)
    >>> tried = [{"n_hidden": 1, "n_init": 1}, {"n_hidden": 2, "n_init": 1}]
    >>> model = RTBMDensityCV(tried, cv=3, random_state=0).fit(X)
    >>> round(float(model.candidate_weights_.sum()), 6), model.sample(2, random_state=0).shape
    (1.0, (2, 1))
    """

    def __init__(
        self,
        candidates: Sequence[Mapping[str, Any]] | None = None,
        *,
        cv: Any = 5,
        combine: str = "auto",
        targets: Sequence[int] | None = None,
        phase: str = "I",
        bounds: Any = None,
        margins: str | None = "auto",
        drop_constant: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ):
        keep_arguments(self, locals())

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the density to data; X, y and sample_weight as for `RTBMDensity`."""
        self._check_parameters()
        forget(self, "_line_density")
        if is_source(X):
            raise InvalidInputError(
                "X: a committee needs all data in memory, as an array: load them or a sample of them, or fit a single "
                "RTBMDensity, which takes files, blocks and Dask collections of any size"
            )
        seed = int(check_random_state(self.random_state).randint(2**31))
        prepared = self._prepare(X, sample_weight)
        if not set(self.targets or ()) <= set(range(self.n_features_in_)):
            raise InvalidInputError(f"targets must be numbers below {self.n_features_in_}, got {self.targets!r}")
        rows, number, weights = self._split(*prepared, seed)
        self.candidates_ = [dict(c) for c in self.candidates or default_candidates(*rows.shape)]
        everything = rows, weights
        if len(rows) > JUDGED_ROWS:
            sample = np.sort(np.random.default_rng(seed).permutation(len(rows))[:JUDGED_ROWS])
            rows, weights, number = rows[sample], weights[sample], number[sample]
        is_sample = len(rows) < len(everything[0])
        folds = Folds(rows, weights, number, self._bounds, self._kept_targets())
        trial = self._cross_validate(folds, seed)
        self._choose(trial, folds, is_sample)
        self._maps = make_maps(self.margins_, self._bounds, *everything)
        points = map_rows(self._maps, everything[0])[0]
        if self.combined_ == "single" or is_sample:
            machines = self._fit_all(points, everything[1], seed)
        elif self.margins_ is None:
            machines = trial.fits
        else:  # the same fits with the maps of all rows, since each fold had maps of its own
            again = Trial(None, len(points), len(self.candidates_))
            folds = Folds(points, weights, number, make_bounds(None, self._names()), [])
            with threads_for(len(points)), without_warnings():
                self._run(again, folds, np.flatnonzero(self.candidate_weights_).tolist(), range(folds.n_folds), seed)
            machines = again.fits
        self._keep(machines, float(everything[1].sum()))
        return self

    def _choose(self, trial: "Trial", folds: "Folds", is_sample: bool) -> None:
        """Find the shares of candidates, and whether a single one serves as well as their average.

        If the folds are of a sample, all rows are fitted again, and there is no average over folds.
        """
        single_fits, weights = trial.held_out, folds.weights
        held_out = single_fits if is_sample else trial.weigh(folds)
        chosen = [trial.promising[i] for i in near_best(held_out.of(trial.promising).log_prob, weights, NEAR)]
        chosen = [chosen[i] for i in distinct(held_out.of(chosen).log_prob)]
        sizes = np.array([np.mean([fit.n_parameters_ for fit in trial.fits[j]]) for j in chosen])
        shares = held_out.of(chosen).shares(weights, np.minimum(COST * sizes, HIGHEST_COST))
        shares[shares < SMALLEST_SHARE] = 0.0
        shares /= shares.sum()
        average = held_out.of(chosen).mixed(shares).log_prob
        behind = weights @ (average - single_fits.of(chosen).log_prob) / weights.sum()
        enough = np.flatnonzero(behind <= NEGLIGIBLE_LOSS)
        single = -1
        if self.combine == "single":
            single = int(behind.argmin())
        elif self.combine == "auto" and len(enough):
            stored = [_stored_size(trial.fits[j][0]._line_density) for j in chosen]
            single = min(enough.tolist(), key=lambda i: stored[i])
        self.combined_ = "stack" if single < 0 else "single"
        self.candidate_weights_ = np.zeros(len(trial.fits))
        self.candidate_weights_[chosen] = shares if single < 0 else np.arange(len(chosen)) == single
        self._behind = float(behind.min() if single < 0 else behind[single])

    def _fit_all(self, points: Floats, weights: Floats, seed: int) -> list[list[RTBMDensity]]:
        """One fit of each candidate that has a share, to all rows."""
        shares = self.candidate_weights_
        with counting_bar(int((shares > 0).sum()), "fitting all rows", bool(self.verbose)) as advance:
            machines: list[list[RTBMDensity]] = []
            for j, share in enumerate(shares):
                machines.append([])
                if share > 0:
                    with without_warnings():
                        machines[j].append(self._machine(j, seed).fit(points, sample_weight=weights))
                    advance()
        return machines

    def _machine(self, candidate: int, seed: int) -> RTBMDensity:
        return RTBMDensity(**{"phase": self.phase, "random_state": seed % 2**32, **self.candidates_[candidate]})

    def _split(self, rows: Floats, weights: Floats, seed: int) -> tuple[Floats, np.ndarray, Floats]:
        """The distinct rows, the number of the fold of each, and the sums of their weights."""
        if not isinstance(self.cv, int | np.integer):
            known = ~np.isnan(rows).all(axis=1)
            return distinct_labelled(rows[known], fold_numbers(self.cv, rows)[known], weights[known])
        rows, weights = distinct_rows(rows, weights)
        if len(rows) < 2 * self.cv:
            raise InvalidInputError(
                f"X: {self.cv} folds need {2 * self.cv} distinct rows or more, got {len(rows)} samples that "
                "differ: lower cv, or collect more data"
            )
        return rows, np.random.default_rng(seed).permutation(len(rows)) % self.cv, weights

    def _cross_validate(self, folds: "Folds", seed: int) -> "Trial":
        """Fit all candidates without each of the first folds, and the promising ones without each of the others.

        Margins are compared first: by two candidates, then by all candidates with those that are not far behind. The
        best ones go on.
        """
        n, m, weights = len(folds.rows), len(self.candidates_), folds.weights
        trials = [Trial(margins, n, m) for margins in self._margins_to_try(folds.rows.shape[1])]
        for trial in trials:
            n_shapes = SHAPES[trial.margins] * folds.rows.shape[1]
            trial.charge = min(MARGINS_COST * n_shapes, HIGHEST_COST) / weights.sum()
        first, seen = range(FIRST_FOLDS), folds.number < FIRST_FOLDS
        shown, seconds = bool(self.verbose), expected_seconds(self.candidates_, n, folds.rows.shape[1], folds.n_folds)
        title = f"{m} candidates, {folds.n_folds} folds, about {seconds / joblib.effective_n_jobs(self.n_jobs):.0f} s"
        with counting_bar(m * folds.n_folds, title, shown) as advance, threads_for(n), without_warnings():
            if len(trials) > 1:
                for trial in trials:
                    self._run(trial, folds, sorted({0, m // 3}), first, seed, advance)
                best = np.stack([trial.best(folds, seen)[1] for trial in trials], axis=1)
                trials = [trials[i] for i in near_best(best, weights[seen], MARGINS_BEHIND)]
            for trial in trials:
                self._run(trial, folds, [j for j in range(m) if not trial.fits[j]], first, seed, advance)
            trial = max(trials, key=lambda trial: trial.best(folds, seen)[0])
            log_prob = trial.held_out.log_prob[seen]
            self.margins_, self.held_out_ = trial.margins, weights[seen] @ log_prob / weights[seen].sum()
            promising = near_best(trial.weigh(folds).log_prob[seen], weights[seen], FAR_BEHIND)
            trial.promising = [promising[i] for i in distinct(log_prob[:, promising])]
            self._run(trial, folds, trial.promising, range(FIRST_FOLDS, folds.n_folds), seed, advance)
        self.held_out_[trial.promising] = weights @ trial.held_out.of(trial.promising).log_prob / weights.sum()
        return trial

    def _margins_to_try(self, n_features: int) -> list[str | None]:
        """The margins that are compared. One feature needs none, since the candidates describe nothing else."""
        return [self.margins] if self.margins != "auto" else [None] if n_features == 1 else [None, *MARGINS]

    def _run(
        self,
        trial: "Trial",
        folds: "Folds",
        candidates: list[int],
        numbers: range,
        seed: int,
        advance: Callable[[], None] = lambda: None,
    ) -> None:
        """Fit candidates without each of some folds, and judge them by those."""
        pairs, training = [(j, k) for k in numbers for j in candidates], {}
        for k in numbers:
            trial.judges[k], training[k] = folds.prepare(trial.margins, k, seed)

        def call(j: int, k: int) -> Any:
            weights, others = folds.weights[folds.number != k], folds.rows[folds.number == k]
            return joblib.delayed(fit_and_score)(
                self._machine(j, seed + k), training[k], weights, trial.judges[k], others
            )

        results = in_parallel(self.n_jobs, (call(j, k) for j, k in pairs), len(folds.rows) <= THREADED_ROWS)
        for (j, k), (fit, joint, given) in zip(pairs, results, strict=True):
            trial.fits[j].append(fit)
            tested = folds.number == k
            trial.held_out.joint[tested, j], trial.held_out.given[tested, j] = joint, given
            advance()

    def _keep(self, machines: list[list[RTBMDensity]], total: float) -> None:
        """Keep the mixture of all machines whose candidates have a share."""
        pairs = zip(self.candidate_weights_, machines, strict=True)
        taken = [(share / len(fits), fit) for share, fits in pairs if share > 0 for fit in fits]
        weights = torch.cat([share * component_weights(fit._line_density) for share, fit in taken])
        parts = [part for _, fit in taken for part in components(fit._line_density)]
        self._set_distribution(RTBMMixture(weights, parts) if len(parts) > 1 else parts[0])
        self._warn_of_lost_probability()
        self._set_summary(
            {
                "n_hidden": max(fit.n_hidden_ for _, fit in taken),
                "members": [member for _, fit in taken for member in fit.summary_["members"]],
                "n_observations": total,
                "n_iter": max(fit.n_iter_ for _, fit in taken),
                "converged": all(fit.converged_ for _, fit in taken),
                "is_gaussian": all(fit.is_gaussian_ for _, fit in taken),
                "margins": self.margins_,
                "combined": self.combined_,
                "behind_average": self._behind,
            }
        )

    def _kept_targets(self) -> list[int]:
        """The targets among the columns that are not constant; none if no other column is left."""
        kept = np.flatnonzero(np.isnan(self.constants_))
        found = np.flatnonzero(np.isin(kept, self.targets or [])).tolist()
        return found if len(found) < len(kept) else []

    def _check_parameters(self) -> None:
        if isinstance(self.cv, int | np.integer):
            check_integer(self.cv, "cv", 2)
        check_choice(self.combine, "combine", COMBINATIONS)
        if self.margins is not None:
            check_choice(self.margins, "margins", ("auto", *MARGINS))
        if self.targets is not None and (isinstance(self.targets, str) or not isinstance(self.targets, Sequence)):
            raise InvalidInputError(f"targets must be None or a list of the numbers of columns, got {self.targets!r}")
        check_choice(self.phase, "phase", ("I", "II"))
        check_flag(self.drop_constant, "drop_constant")
        check_jobs(self.n_jobs)
        if self.candidates is None:
            return
        if (
            isinstance(self.candidates, str | Mapping)
            or not isinstance(self.candidates, Sequence)
            or not self.candidates
        ):
            raise InvalidInputError(
                f"candidates must be None or a list of dictionaries, one or more, got {self.candidates!r}"
            )
        for candidate in self.candidates:
            known = set(RTBMDensity().get_params()) - {"phase", "bounds", "margins", "drop_constant"}
            if not isinstance(candidate, Mapping) or not set(candidate) <= known:
                raise InvalidInputError(
                    "candidates must be dictionaries of arguments of RTBMDensity, without phase, bounds, margins and "
                    f"drop_constant, which are those of the committee, got {candidate!r}"
                )
            RTBMDensity(**candidate)._check_parameters()


class Judge(NamedTuple):
    """Maps rows to the real line and scores them."""

    maps: list[ColumnMap]
    targets: list[int]

    def score(self, model: RTBMDensity, rows: Floats) -> tuple[Floats, Floats]:
        """log P of rows (n, d) by a density on the line, of all columns and of those that are not targets.

        A row where log P leaves float64 counts as OUT_OF_REACH lower than all others. Without targets the second is 0.
        """
        y, log_slope = map_rows(self.maps, rows)
        joint: Floats = model._held_out_log_prob(y) + log_slope.sum(axis=1)
        given: Floats = np.zeros(len(rows))
        if self.targets:
            features = y.copy()
            features[:, self.targets] = np.nan
            given = model._log_prob(features) + np.delete(log_slope, self.targets, axis=1).sum(axis=1)
        within = np.isfinite(joint) & np.isfinite(given)
        lowest = (joint - given)[within].min() if within.any() else 0.0
        return np.where(within, joint, lowest - OUT_OF_REACH), np.where(within, given, 0.0)


class Folds(NamedTuple):
    """Rows with weights, and the number of the fold of each row."""

    rows: Floats  # (n, d)
    weights: Floats  # (n,)
    number: np.ndarray  # (n,)
    bounds: Bounds
    targets: list[int]

    @property
    def n_folds(self) -> int:
        """The number of folds."""
        return int(self.number.max()) + 1

    def prepare(self, margins: str | None, k: int, seed: int) -> tuple[Judge, Floats]:
        """What judges fits without fold k, and the other rows on the real line. Maps are learned without the fold."""
        others = self.number != k
        rows = with_spread(self.rows[others], self.rows, seed + k)
        maps = make_maps(margins, self.bounds, rows, self.weights[others])
        return Judge(maps, self.targets), map_rows(maps, rows)[0]


class Trial:
    """Candidates with one kind of margins: their fits without each fold, and log P of the rows of that fold."""

    def __init__(self, margins: str | None, n_rows: int, n_candidates: int):
        self.margins = margins
        self.fits: list[list[RTBMDensity]] = [[] for _ in range(n_candidates)]
        self.held_out = HeldOut(np.full((n_rows, n_candidates), np.nan), np.zeros((n_rows, n_candidates)))
        self.judges: dict[int, Judge] = {}
        self.promising: list[int] = []
        self._gains: dict[tuple[int, int], float] = {}  # of candidates, and numbers of their fits
        self.charge = 0.0  # for the parameters of the maps, for each row

    def best(self, folds: Folds, seen: np.ndarray) -> tuple[float, Floats]:
        """The highest mean log P of a candidate on some rows, as `weigh` counts it, and its log P of them."""
        tried = [j for j, fits in enumerate(self.fits) if fits]
        log_prob = self.weigh(folds).of(tried).log_prob[seen] - self.charge
        means = folds.weights[seen] @ log_prob / folds.weights[seen].sum()
        return float(means.max()), log_prob[:, means.argmax()]

    def weigh(self, folds: Folds) -> "HeldOut":
        """log P of the rows by each candidate without their fold, plus what its average over all folds gains."""
        for j, fits in enumerate(self.fits):
            if len(fits) > 1 and (j, len(fits)) not in self._gains:
                self._gains[j, len(fits)] = self._gain(fits, folds)
        gains = [self._gains.get((j, len(fits)), 0.0) for j, fits in enumerate(self.fits)]
        return HeldOut(self.held_out.joint + gains, self.held_out.given)

    def _gain(self, fits: list[RTBMDensity], folds: Folds) -> float:
        """What the average of fits gains: the mean over rows of log mean P − mean log P.

        Each row is judged by the fits that have seen it, since a fit that has not differs from them in another way. The
        gain grows with the number of fits in proportion to 1 − 1/number, as a variance does.
        """
        some = slice(None, None, -(-len(folds.rows) // GAIN_ROWS))
        rows, weights, number = folds.rows[some], folds.weights[some], folds.number[some]
        scores = [self.judges[k].score(fit, rows) for k, fit in enumerate(fits)]
        total, counted = 0.0, 0.0
        for k in range(folds.n_folds):
            own, seen = number == k, [score for m, score in enumerate(scores) if m != k]
            if len(seen) < 2 or not own.any():
                continue
            parts = HeldOut(*np.stack(seen, axis=2)[:, own])
            gains = parts.mixed(np.full(len(seen), 1 / len(seen))).log_prob[:, 0] - parts.log_prob.mean(axis=1)
            total += weights[own] @ gains * (1 - 1 / folds.n_folds) / (1 - 1 / len(seen))
            counted += weights[own].sum()
        return float(total / counted) if counted else 0.0


class HeldOut(NamedTuple):
    """log P of n rows by m candidates that have not seen them."""

    joint: Floats  # (n, m): of all columns
    given: Floats  # (n, m): of the columns that are not targets; 0 without targets

    def of(self, candidates: list[int]) -> "HeldOut":
        """Those of some candidates."""
        return HeldOut(self.joint[:, candidates], self.given[:, candidates])

    @property
    def log_prob(self) -> Floats:
        """What candidates are judged by: log P of all columns, or of the targets given the others."""
        return self.joint - self.given

    def mixed(self, shares: Floats) -> "HeldOut":
        """That of the mixture of the candidates, as one candidate."""
        parts = (logsumexp(part, axis=1, b=shares, keepdims=True) for part in self)
        return HeldOut(*parts)

    def shares(self, weights: Floats, costs: Floats) -> Floats:
        """The shares (m,) of candidates; see `stacking_weights` and `conditional_weights`."""
        if not self.given.any():
            return stacking_weights(self.joint, weights, costs)
        return conditional_weights(self.joint, self.given, weights, costs)


def _stored_size(density: Density) -> int:
    """The number of parameters of all machines of a density, also of those that describe Gaussians."""
    return sum(count(part.n_visible, part.n_hidden, part.coupling) + 1 for part in components(density))


def make_density(given: Any, n_rows: int, **options: Any) -> Any:
    """An unfitted density for a predictor: a copy of the one that the user gave, or a committee with these options.

    Columns with only one value are left out. With few rows the committee has fewer folds.
    """
    if given is None:
        density: Any = RTBMDensityCV(cv=min(5, max(2, n_rows // 2)), **options)
    elif isinstance(given, FittedDensity):
        density = clone(given)
    else:
        raise InvalidInputError(f"density must be None, an RTBMDensity or an RTBMDensityCV, got {given!r}")
    return density.set_params(drop_constant=True)


def default_candidates(n_rows: int, n_features: int) -> list[dict[str, Any]]:
    """The candidates for a table of this size.

    Candidates for few rows of one or two features, and mixtures with more parameters than rows, are compared with no
    Gaussians. One Gaussian would replace them whatever they are worth, and cross-validation can tell.

    Examples
    --------
    >>> [c.get("fallback") for c in default_candidates(100, 10)][2:4]
    [None, None]
    """
    chosen = ONE_FEATURE if n_features == 1 else SEVERAL_FEATURES
    chosen += MANY_FEATURES if n_features > 2 else ()
    chosen += WIDE_TABLES if n_features >= 20 else ()
    has_few_rows = n_features <= 2 and n_rows < FEW_ROWS
    candidates: list[dict[str, Any]] = []
    for candidate in chosen:
        n_machines = candidate.get("n_components", 1)
        n_parameters = n_machines * (count(n_features, candidate["n_hidden"]) + 1)
        is_too_rich = n_machines > 1 and n_parameters > TRAINING_SHARE * n_rows
        made = {**EFFORT, **candidate, **({"fallback": None} if has_few_rows or is_too_rich else {})}
        candidates += [made] if made not in candidates else []
    return candidates


def expected_seconds(candidates: Sequence[Mapping[str, Any]], n_rows: int, n_features: int, n_folds: int = 5) -> float:
    """The approximate time, on one core, in which candidates for dense machines are fitted without each fold.

    Examples
    --------
    >>> tried = default_candidates(2000, 50)
    >>> bool(expected_seconds(tried, 2000, 50) > 10 * expected_seconds(tried, 2000, 5))
    True
    """
    total = 0.0
    for candidate in candidates:
        n_machines = candidate.get("n_components", 1)
        n_states = 2 ** (min(candidate.get("n_hidden", 2), MAX_DENSE_UNITS) - 1)
        products = n_machines * n_rows * (n_features + 2) ** 2 * n_states
        starts = candidate.get("n_init", 8)
        total += starts * PASSES * (PASS_SECONDS * (1 + n_machines) + PRODUCT_SECONDS * products)
    return n_folds * total


def stacking_weights(log_prob: Floats, weights: Floats, costs: Floats, tol: float = 1e-7) -> Floats:
    """The shares s (m,) of candidates that maximise the log-likelihood of their mixture less their costs, by EM.

    The costs are Σ_j s_j costs_j. The M-step is s_j = c_j/(μ + costs_j), with c_j the number of rows that candidate j
    explains, and μ such that the shares have sum 1.

    Parameters
    ----------
    log_prob : (n, m)
        log P of each row by each candidate, fitted without it.
    weights : (n,)
        How often each row counts.
    costs : (m,)
        What candidates cost if they have the whole share.
    tol : float, default=1e-7
        Iterations end when no share changes by more.

    Examples
    --------
    >>> log_prob = np.log([[0.9, 0.1], [0.2, 0.9]])
    >>> stacking_weights(log_prob, np.ones(2), np.zeros(2)).round(2)
    array([0.58, 0.42])
    >>> stacking_weights(log_prob, np.ones(2), np.array([0.0, 2.0])).round(2)
    array([0.94, 0.06])
    """
    costs = costs - costs.min()
    total = float(weights.sum())
    ratios = np.exp(log_prob - log_prob.max(axis=1, keepdims=True))
    shares = np.full(log_prob.shape[1], 1 / log_prob.shape[1])
    for _ in range(STACKING_ITERATIONS):
        before = shares
        counts = shares * ((weights / (ratios @ shares)) @ ratios)
        shares = _with_costs(counts, costs, total)
        if np.abs(shares - before).max() < tol:
            break
    return shares


def conditional_weights(joint: Floats, given: Floats, weights: Floats, costs: Floats) -> Floats:
    """The shares s (m,) that maximise the likelihood of targets given the other columns, less the costs of candidates.

    It is Σ_i w_i log(Σ_j s_j exp(joint_ij)/Σ_j s_j exp(given_ij)) − Σ_j s_j costs_j, by L-BFGS from equal shares.

    Parameters
    ----------
    joint, given : (n, m)
        log P of all columns, and of those that are not targets, by each candidate, fitted without the row.
    weights, costs : (n,), (m,)
        As for `stacking_weights`.

    Examples
    --------
    >>> joint = np.log([[0.9, 0.1], [0.2, 0.9]])
    >>> conditional_weights(joint, np.zeros((2, 2)), np.ones(2), np.zeros(2)).round(2)
    array([0.58, 0.42])
    """
    joint, given = (part - part.max(axis=1, keepdims=True) for part in (joint, given))

    def loss(logits: Floats) -> tuple[float, Floats]:
        parts = [log_prob + log_softmax(logits) for log_prob in (joint, given)]
        totals = [logsumexp(part, axis=1) for part in parts]
        shares = softmax(logits)
        explained = [weights @ np.exp(part - total[:, None]) for part, total in zip(parts, totals, strict=True)]
        slope = shares * (costs - shares @ costs) - explained[0] + explained[1]
        return float(shares @ costs - weights @ (totals[0] - totals[1])), slope

    return softmax(minimize(loss, np.zeros(len(costs)), jac=True, method="L-BFGS-B", bounds=[(-30, 30)] * len(costs)).x)


def _with_costs(counts: Floats, costs: Floats, total: float) -> Floats:
    """counts/(μ + costs) with sum 1, for costs from 0 on, by Newton's method for a convex function of μ."""
    μ = max(total - costs.max(), 1e-9 * total)
    for _ in range(50):
        shares = counts / (μ + costs)
        step = (shares.sum() - 1) / (shares / (μ + costs)).sum()
        μ += step
        if step <= 1e-12 * total:
            break
    shares = counts / (μ + costs)
    return shares / shares.sum()


def near_best(log_prob: Floats, weights: Floats, threshold: float) -> list[int]:
    """The candidates whose mean log P is within `threshold` standard errors, of the paired difference, of the best.

    Parameters
    ----------
    log_prob, weights : (n, m), (n,)
        As for `stacking_weights`.
    threshold : float
        Standard errors; with 0 the best alone is near.

    Examples
    --------
    >>> near_best(np.array([[1.0, 0.0, 1.1], [1.0, 0.1, 0.8]]), np.ones(2), 1.0)
    [0, 2]
    """
    total = weights.sum()
    best = int((weights @ log_prob).argmax())
    behind = log_prob[:, [best]] - log_prob
    mean = weights @ behind / total
    error = np.sqrt(weights @ (behind - mean) ** 2) / total
    return [j for j in range(log_prob.shape[1]) if j == best or mean[j] < threshold * error[j]]


def distinct(log_prob: Floats) -> list[int]:
    """The candidates that differ from all before them. Several may have been replaced by the same Gaussians.

    Examples
    --------
    >>> distinct(np.array([[1.0, 1.0, 2.0], [3.0, 3.0, 3.0]]))
    [0, 2]
    """
    columns = list(log_prob.T)
    return [i for i, mine in enumerate(columns) if not any(np.allclose(mine, other, 0, SAME) for other in columns[:i])]


def fold_numbers(cv: Any, rows: Floats, y: Any = None) -> np.ndarray:
    """The number (n,) of the test set that each row is in, of a splitter or of pairs (training rows, test rows).

    Examples
    --------
    >>> fold_numbers([([2, 3], [0, 1]), ([0, 1], [2, 3])], np.zeros((4, 1)))
    array([0, 0, 1, 1])
    """
    from sklearn.model_selection import check_cv  # half a second, which loading and using a committee spares

    numbers, count = np.full(len(rows), -1), np.zeros(len(rows), dtype=np.int64)
    try:
        tests = [np.asarray(test) for _, test in check_cv(cv, y).split(rows, y)]
        for k, test in enumerate(tests):
            numbers[test] = k
            count[test] += 1
    except (IndexError, TypeError, ValueError) as error:
        raise InvalidInputError(f"cv must be an integer, a splitter or pairs of row numbers ({error})") from None
    if len(tests) < 2 or not (count == 1).all():
        raise InvalidInputError(
            f"cv must have two folds or more, and every row in one test set, got {len(tests)} folds and "
            f"{int((count != 1).sum())} rows in none or several: use KFold or another partition"
        )
    return numbers


def with_spread(part: Floats, rows: Floats, seed: int) -> Floats:
    """A part of the rows, in which columns that hold only one value there are replaced by random numbers.

    These are spread evenly between the smallest and the largest value of all rows. So a column that is constant without
    a fold has a density of that width, the same for all candidates.

    Examples
    --------
    >>> with_spread(np.array([[1.0, 5.0], [2.0, 5.0]]), np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 6.0]]), seed=0).round(1)
    array([[1. , 5.6],
           [2. , 5.3]])
    """
    absent = np.isnan(part)
    flat = np.flatnonzero(is_constant(part) | absent.all(axis=0))
    if not len(flat):
        return part
    ends = np.nanmin(rows[:, flat], axis=0), np.nanmax(rows[:, flat], axis=0)
    spread = np.random.default_rng(seed).uniform(*ends, (len(part), len(flat)))
    part = part.copy()
    part[:, flat] = np.where(absent[:, flat] & ~absent[:, flat].all(axis=0), np.nan, spread)
    return part


def fit_and_score(
    model: RTBMDensity, training: Floats, weights: Floats, judge: Judge, others: Floats
) -> tuple[RTBMDensity, Floats, Floats]:
    """Fit a model to rows on the line, and score other rows. The fit need not have converged: it is judged as it is."""
    with without_warnings():
        try:
            model.fit(training, sample_weight=weights)
        except InvalidInputError as error:
            raise InvalidInputError(f"without one of the folds there is no fit, so lower cv: {error}") from None
    return model, *judge.score(model, others)
