"""Density estimation by a committee of machines that cross-validation chooses and weighs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Self, TypedDict

import joblib
import numpy as np
from sklearn.base import clone

from rtbm.common import Floats
from rtbm.distributions import ColumnMap, MixedDistribution
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import (
    check_flag,
    check_jobs,
    distinct_labelled,
    distinct_rows,
    draw_seed,
    forget,
    keep_arguments,
    memory_limit,
)
from rtbm.estimators.density.bounds import make_bounds
from rtbm.estimators.density.candidates import default_candidates, expected_seconds
from rtbm.estimators.density.categories import UNKNOWN
from rtbm.estimators.density.estimator import RTBMDensity
from rtbm.estimators.density.fitted import FittedDensity, Summary, components
from rtbm.estimators.density.folds import Folds, Trial, average_densities, deal, fit_and_score, fold_numbers
from rtbm.estimators.density.margins import MARGINS, SHAPES, are_alike, learn_margin, make_maps, map_rows
from rtbm.estimators.density.predictions import PredictingDensity
from rtbm.estimators.density.stacking import distinct, near_best
from rtbm.estimators.parallel import THREADED_ROWS, in_parallel, threads_for, without_warnings
from rtbm.estimators.progress import counting_bar
from rtbm.parameters import count
from rtbm.training import Density
from rtbm.training.blocks import comes_in_blocks
from rtbm.validation import check_choice, check_integer

JUDGED_ROWS = 20_000
"""With more distinct rows, candidates are judged on a sample of this size, and those with a share are fitted to all
rows. More rows tell candidates apart that differ by less, and take longer."""
COMBINATIONS = ("auto", "stack", "single")
OWN_ARGUMENTS = {
    "phase",
    "bounds",
    "margins",
    "drop_constant",
    "categorical_features",
    "atoms",
    "rounded",
    "handle_unknown",
}
"""Arguments of the committee that no candidate may have."""
FIRST_FOLDS, FAR_BEHIND, NEAR = 2, 3.0, 2.0
"""After FIRST_FOLDS folds, candidates that are more than FAR_BEHIND standard errors behind the best are dropped, and so
are those whose density is the same as another's. After all folds, those within NEAR standard errors of the best get
weights. Larger values keep more, and take longer."""
MARGINS_BEHIND, MARGINS_COST = 0.5, 1.0
"""Margins with which a few candidates are more than MARGINS_BEHIND standard errors behind are dropped. Others must gain
MARGINS_COST for each parameter of their maps, and at most HIGHEST_COST, to be preferred to simpler ones."""
ACCEPTED_LOSS = 0.005
"""A single candidate replaces the average if it costs at most this much log-likelihood of a row."""
COST, HIGHEST_COST = 0.25, 10.0
"""The log-likelihood that a candidate must gain for each parameter, and at most in all, to get a weight. Lower costs
favour larger candidates."""
SMALLEST_SHARE = 1e-3
"""Candidates of less weight are left out."""


class CommitteeSummary(TypedDict):
    """What a committee knows beside `Summary`."""

    margins: str | None
    combined: str
    behind_average: float


class RTBMDensityCV(PredictingDensity):
    """A density whose size, regularization and maps of columns cross-validation chooses: one candidate, or an average.

    Each candidate is fitted once without each fold of the data, and judged by the likelihood of that fold. Candidates
    that are far behind after two folds are dropped. The candidates within two standard errors of the best get weights
    that maximise the log-likelihood of the held-out folds (stacking), less a charge for each free parameter. The fitted
    density is the mixture of all their fits (a committee), which has less variance than a single fit; or one candidate,
    fitted to all rows, where that is as good. With more than 20,000 distinct rows, candidates are judged on a sample of
    those, and the ones with a weight are fitted to all rows.

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
    margins : "auto", "log", "yeo-johnson", "learned" or None, default="auto"
        As in `RTBMDensity`. "auto" lets the held-out folds decide, with maps that are learned without them.
    drop_constant : bool, default=False
    categorical_features : "auto", list, dict or None, default="auto"
    atoms : "auto", dict or None, default="auto"
    rounded : "auto", list, dict or None, default="auto"
    handle_unknown : "warn", "ignore" or "error", default="warn"
        As in `RTBMDensity`.
    random_state : int, Generator, RandomState or None, default=None
        The same integer gives the same result, bit for bit.
    n_jobs : int, default=None
        The number of fits that run at the same time, through joblib and its active backend. -1 for all cores.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    distribution_ : RTBMDistribution, RTBMMixture, MappedDistribution or MixedDistribution
        The fitted density of the features as given; with `bounds` or margins a MappedDistribution, with categories a
        MixedDistribution.
    categories_ : list
        The levels of each feature that is a column of categories; None for the others.
    margins_, combined_ : str
        The margins, and the way to combine candidates, that were chosen.
    calibration_ : ColumnMap
        Corrects the distribution function F of a single target y given the other columns x: it takes the normal scores
        Φ⁻¹(F(y|x)) of held-out rows to a normal distribution. Without a target, or with several, it changes nothing.
    candidates_ : list of dict
        What was tried.
    held_out_ : (n_candidates,)
        The mean log-likelihood of each candidate on folds that it has not seen (of the targets given the other columns,
        if there are targets): two folds, or all.
    candidate_weights_ : (n_candidates,)
        The share of each candidate.
    held_out_scores_, held_out_counts_ : (n_judged,), (n_judged,)
        log P of the rows that judged the candidates by the fits that have not seen them, and the weights of these rows.
        Equal rows of one fold are one row. An average of fits is, on the mean over rows, as much higher than each of
        them as the scores are. Their mean is `summary_["held_out_log_likelihood"]`.
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

    candidates_: Annotated[list[dict[str, Any]], "candidates"]
    calibration_: ColumnMap
    candidate_weights_: Annotated[Floats, "candidates"]
    margins_: str | None
    combined_: str
    held_out_: Annotated[Floats, "candidates"]
    held_out_scores_: Annotated[Floats, "rows"]
    held_out_counts_: Annotated[Floats, "rows"]
    summary_: Annotated[dict[str, Any], Summary, CommitteeSummary]

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
        categorical_features: Any = "auto",
        atoms: Any = "auto",
        rounded: Any = "auto",
        handle_unknown: str = "warn",
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ):
        keep_arguments(self, locals())

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the density to data; X, y and sample_weight as for `RTBMDensity`."""
        self._check_parameters()
        forget(self, "_line_density")
        if comes_in_blocks(X, memory_limit()):
            raise InvalidInputError(
                "X: a committee needs all data in memory, as an array: load them or a sample of them, or fit a single "
                "RTBMDensity, which takes files, blocks and Dask collections of any size"
            )
        seed = draw_seed(self.random_state)
        prepared = self._prepare(X, sample_weight, seed, merge=isinstance(self.cv, int | np.integer))
        if not set(self.targets or ()) <= set(range(self.n_features_in_)):
            raise InvalidInputError(f"targets must be numbers below {self.n_features_in_}, got {self.targets!r}")
        rows, number, weights = self._split(*prepared, seed)
        kinds, sizes = self._kinds, self._sizes
        n, d = len(rows), rows.shape[1] - len(sizes)
        d = max(d, 2) if sizes else d  # one column of numbers beside categories needs mixtures
        self.candidates_ = [dict(c) for c in self.candidates or default_candidates(n, d, bool(self._kept_targets()))]
        everything = rows, weights
        if len(rows) > JUDGED_ROWS:
            sample = np.sort(np.random.default_rng(seed).permutation(len(rows))[:JUDGED_ROWS])
            rows, weights, number = rows[sample], weights[sample], number[sample]
        is_sample = len(rows) < len(everything[0])
        folds = Folds(rows, weights, number, self._bounds, kinds.places(self._kept_targets()), sizes, kinds.near_zero)
        trial = self._cross_validate(folds, seed)
        self._choose(trial, folds, is_sample)
        self.calibration_ = learn_margin(trial.target_scores(self.candidate_weights_, folds), weights)
        self._maps = make_maps(self.margins_, self._bounds, *everything, sizes, kinds.near_zero)
        points = map_rows(self._maps, everything[0])[0]
        if self.combined_ == "single" or is_sample:
            machines = self._fit_all(points, everything[1], seed)
        elif self.margins_ is None:
            machines = trial.fits
        else:  # the same fits with the maps of all rows, since each fold had maps of its own
            again = Trial(None, len(points), len(self.candidates_))
            folds = Folds(points, weights, number, make_bounds(None, self._names()), [], sizes)
            with threads_for(len(points)), without_warnings():
                self._run(again, folds, np.flatnonzero(self.candidate_weights_).tolist(), range(folds.n_folds), seed)
            machines = again.fits
        self._keep(machines, float(everything[1].sum()))
        return self

    def _choose(self, trial: Trial, folds: Folds, is_sample: bool) -> None:
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
        enough = np.flatnonzero(behind <= ACCEPTED_LOSS)
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
        taken = np.flatnonzero(self.candidate_weights_).tolist()
        parts = (held_out if single < 0 else single_fits).of(taken)
        self.held_out_scores_ = parts.mixed(self.candidate_weights_[taken]).joint[:, 0]
        self.held_out_counts_ = weights

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
        levels = {place: range(size) for place, size in self._sizes.items()}
        known: dict[str, Any] = {
            "phase": self.phase,
            "random_state": seed % 2**32,
            "categorical_features": levels or None,
            "atoms": None,
            "rounded": None,
        }
        return RTBMDensity(**known | self.candidates_[candidate])

    def _split(self, rows: Floats, weights: Floats, seed: int) -> tuple[Floats, np.ndarray, Floats]:
        """The distinct pairs of a row and its fold: the rows, the numbers of the folds, and the sums of the weights.

        Equal rows without a number other than atoms are separate observations of one cell of a table, and are dealt
        over the folds. Equal rows with such a number are copies, and stay in one fold, unless too few rows differ.
        """
        if not isinstance(self.cv, int | np.integer):
            known = ~np.isnan(rows).all(axis=1)
            return distinct_labelled(rows[known], fold_numbers(self.cv, rows)[known], weights[known])
        rows, weights = distinct_rows(rows, weights)
        is_dealt = np.isnan(np.delete(rows, list(self._sizes), axis=1)).all(axis=1) | (len(rows) < 2 * self.cv)
        number, place, parts = deal(np.where(is_dealt, np.ceil(weights), 1.0), int(self.cv), seed)
        if parts.sum() < 2 * self.cv:
            raise InvalidInputError(
                f"X: {self.cv} folds need {2 * self.cv} rows or more, got {len(rows)} that differ, with weights of "
                f"sum {weights.sum():g}: lower cv, or collect more data"
            )
        return rows[place], number, parts * (weights / np.bincount(place, parts))[place]

    def _cross_validate(self, folds: Folds, seed: int) -> Trial:
        """Fit all candidates without each of the first folds, and the promising ones without each of the others.

        Margins are compared first: by two candidates, then by all candidates with those that are not far behind. The
        best ones go on.
        """
        n, m, weights = len(folds.rows), len(self.candidates_), folds.weights
        trials = [Trial(margins, n, m) for margins in self._margins_to_try(folds)]
        for trial in trials:
            n_shapes = SHAPES[trial.margins] * folds.rows.shape[1]
            trial.charge = min(MARGINS_COST * n_shapes, HIGHEST_COST) / weights.sum()
        first, seen = range(FIRST_FOLDS), folds.number < FIRST_FOLDS
        shown, seconds = bool(self.verbose), expected_seconds(self.candidates_, n, folds.rows.shape[1], folds.n_folds)
        title = f"{m} candidates, {folds.n_folds} folds, about {seconds / joblib.effective_n_jobs(self.n_jobs):.0f} s"
        n_fits = m * (folds.n_folds + FIRST_FOLDS * (len(trials) - 1))  # at most
        with counting_bar(n_fits, title, shown) as advance, threads_for(n), without_warnings():
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

    def _margins_to_try(self, folds: Folds) -> list[str | None]:
        """The margins that are compared. Tables without numbers need none."""
        if self.margins != "auto" or folds.rows.shape[1] == len(folds.sizes):
            return [None if self.margins == "auto" else self.margins]
        data = folds.bounds, folds.rows, folds.weights, folds.sizes, folds.near_zero
        plain, logs = (make_maps(kind, *data) for kind in (None, "log"))
        return [None, *(kind for kind in MARGINS if kind != "log" or not are_alike(plain, logs))]

    def _run(
        self,
        trial: Trial,
        folds: Folds,
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
        average = average_densities(taken)
        is_mixed = isinstance(average, MixedDistribution)
        self._set_distribution(self._kinds.join(average, self._maps) if is_mixed else average)
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
                "held_out_log_likelihood": float(np.average(self.held_out_scores_, weights=self.held_out_counts_)),
            }
        )

    def _kept_targets(self) -> list[int]:
        """The targets among the columns that are not constant; none if no other column is left."""
        kept = self._kept
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
        check_choice(self.handle_unknown, "handle_unknown", UNKNOWN)
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
            known = set(RTBMDensity().get_params()) - OWN_ARGUMENTS
            if not isinstance(candidate, Mapping) or not set(candidate) <= known:
                raise InvalidInputError(
                    f"candidates must be dictionaries of arguments of RTBMDensity, without {sorted(OWN_ARGUMENTS)}, "
                    f"which are those of the committee, got {candidate!r}"
                )
            RTBMDensity(**candidate)._check_parameters()


def _stored_size(density: Density) -> int:
    """The number of parameters of all machines of a density, also of those that describe Gaussians."""
    return sum(count(part.n_visible, part.n_hidden) + 1 for part in components(density))


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
