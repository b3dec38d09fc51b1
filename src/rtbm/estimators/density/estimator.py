"""Density estimation by Riemann-Theta Boltzmann machines, with the conventions of scikit-learn."""

import io
import math
import time
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Self

import numpy as np
import torch
from torch import Tensor

from rtbm.common import PHASES, Floats
from rtbm.data_files import FileRows
from rtbm.distributions import CategoryColumn, ColumnMap, MixedDistribution
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import (
    check_flag,
    check_number,
    check_search,
    distinct_rows,
    draw_seed,
    forget,
    keep_arguments,
    memory_limit,
    split_rows,
)
from rtbm.estimators.density.bounds import make_bounds
from rtbm.estimators.density.categories import UNKNOWN, LevelSearch, code_table, merge_levels
from rtbm.estimators.density.columns import ColumnKinds, Levels, split_columns, states_of
from rtbm.estimators.density.fallback import FullDataScore, find_machine, find_simpler, without_strays
from rtbm.estimators.density.fitted import Summary, component_weights, components
from rtbm.estimators.density.margins import MARGINS, are_alike, make_maps, map_rows
from rtbm.estimators.density.predictions import PredictingDensity
from rtbm.estimators.density.standardise import Standardised, like, log_scales, standardise, to_standard
from rtbm.estimators.density.summary import (
    POLISHING_TOL,
    SAMPLED_ROWS,
    DataSummary,
    RowEncoder,
    fit_all,
    prepare,
    split_sample,
    standardise_sample,
    summarise,
)
from rtbm.estimators.density.task import DensityTask
from rtbm.estimators.multistart import Outcome, Report, SearchSummary, count_runs, search, task_options
from rtbm.estimators.progress import progress_bar, watch_of
from rtbm.training import FAILURES, SOLVERS, ArrayBlocks, Density, Family, Record, Result, objective
from rtbm.training.blocks import LocalData, array_part, comes_in_blocks, is_path, open_data
from rtbm.training.distributed import gather_objects, is_distributed
from rtbm.training.mixed import Discrete, LatentClasses, StateTables
from rtbm.validation import check_choice

FALLBACKS = ("gaussian", "gaussians")
EVALUATED_ROWS = 30
"""A fitted density is evaluated on about this many rows, to make sure that it can be."""
LARGEST_DISTANCE = 1e140
"""Rows that are more standard deviations away than this are out of reach: the square of the distance leaves float64."""
MIXED_ITERATIONS, MIXED_TOL = 300, 1e-5
"""The most iterations of fits with categories or atoms, if `max_iter` is None, and the least tolerance: near the end,
steps of EM gain little."""
MODERATE = 12.0
"""Machines whose free parameters are all below this can be evaluated without a trial."""


class RTBMDensity(PredictingDensity):
    """A density fitted by one Riemann-Theta Boltzmann machine, or by a mixture of them.

    The machine is fitted by penalised maximum likelihood from several data-driven starts. Its density, samples,
    conditionals and marginals are exact.

    Parameters
    ----------
    n_hidden : int, default=2
        The number of hidden units of each machine. More units can describe finer structure: a machine with N
        units starts as 2^N Gaussians, and has at most 22. `RTBMDensityCV` chooses the number by cross-validation.
    n_components : int, default=1
        The number of machines in the mixture.
    phase : "I" or "II", default="I"
        The phase in which the parameters are shown, and in which `transform` computes. Both phases have the same
        densities.
    solver : "lbfgs", "em" or "cma", default="lbfgs"
        "lbfgs" starts with expectation maximisation where that helps. "em" is expectation maximisation alone. "cma"
        needs no derivatives.
    max_iter : int, default=None
        The largest number of iterations, or generations ("cma"); None for the solver's default.
    tol : float, default=1e-7
        Iterations end when the objective improves by less.
    n_init : int, default=8
        The number of starts. The first start is the same for all seeds.
    regularization : float, default=1.0
        The strength of the prior against fine structure. Like the bandwidth of a kernel it smooths the density, but it
        matters less as the data grow. 0 is maximum likelihood (with a weak prior on the hidden units alone), which
        overfits with more than two hidden units.
    validation_fraction : float, default=None
        The share of the data that is set aside for validation. Iterations end when the likelihood of these data has not
        improved for `n_iter_no_change` iterations; the best start and iteration are those with the highest one. None
        sets nothing aside.
    n_iter_no_change : int, default=20
        See `validation_fraction`.
    fallback : "gaussian", "gaussians" or None, default="gaussian"
        With "gaussian", a fit that does not beat a single Gaussian is replaced by it (a member of the family whose
        hidden units are all but continuous). To beat it, the fit needs more observations than parameters, and a better
        Bayesian information criterion or a gain that chance would give once in 10^6. With "gaussians", a mixture must
        also beat a mixture of as many Gaussians. None keeps every fit.
    bounds : pair or list of pairs, default=None
        (low, high) for data on an interval, (low, None) or (None, high) for a half line, or one of these or None for
        each feature. The machine then describes the logarithm, or the logit, of the distance from the bounds. Where
        training data lie on a bound, values there count as a value inside, halfway between the bound and the nearest
        other value of the training data, and `fit` warns of them.
    margins : "log", "yeo-johnson", "learned" or None, default=None
        How features without bounds are mapped to the real line, where the machine describes them. "log" takes the
        logarithm of features that are all positive, where it is more nearly normal, so that draws are positive, too.
        "yeo-johnson" takes a
        power of each feature, which makes skewed ones symmetric. "learned" fits a density to each feature first, and
        the machine then describes how their normal scores depend on each other (a copula). `RTBMDensityCV` chooses by
        cross-validation. Features with fewer than five values stay as they are. Beyond the data, maps are straight.
    drop_constant : bool, default=False
        Whether to leave features with only one value out of the density. By default they are an error. With True,
        `score_samples` ignores the constant features, and `sample` fills them in.
    categorical_features : "auto", list, dict or None, default="auto"
        Columns of categories, by name or number, or {column: its levels}. Each machine then has a table of their
        probabilities, which EM learns, with a prior of two rows toward the distribution of all rows. "auto" takes the
        columns of text, categories and booleans of a data frame or a Parquet file, and leaves identifiers out, with a
        warning: text with more than 20 different values that are more than half of the cells, and whole numbers that
        count the rows. Without columns of numbers, the density is a mixture of tables (latent classes).
    atoms : "auto", dict or None, default="auto"
        Numbers that have a probability of their own, {column: values}: zeros, caps, codes for "unknown". Each machine
        has a probability for each of them, and describes the other numbers. "auto" takes values that at least 3 % of
        the rows have, and ten times as many as values near them, and values on a bound.
    rounded : "auto", list, dict or None, default="auto"
        Columns of rounded numbers or counts, or {column: the width of its cells}. Their values are spread evenly over
        their cells by the seed, so that the density has no spikes, and `sample` rounds its draws. "auto" takes columns
        whose values lie on a grid and repeat; draws of other columns then have as many decimals as the data, up to six.
    handle_unknown : "warn", "ignore" or "error", default="warn"
        What is done with levels, after the fit, that it has not seen: they count as gaps, with a warning or without, or
        are an error.
    warm_start : bool, default=False
        Whether `fit` starts at the density of the last fit, if that has the same sizes and is no Gaussian, instead of
        from `n_init` starts. For data in memory.
    random_state : int, Generator, RandomState or None, default=None
        The same integer gives the same result, bit for bit.
    n_jobs : int, default=None
        The number of starts that run at the same time, through joblib and its active backend. -1 for all cores.
    device : str, default=None
        A torch device, as "cuda"; None for the CPU.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    distribution_ : RTBMDistribution, RTBMMixture, MappedDistribution or MixedDistribution
        The fitted density of the features as given. With `bounds` or `margins` it is a MappedDistribution, whose `base`
        is the machine or mixture that describes the mapped features. With categories it is a MixedDistribution.
    categories_ : list
        The levels of each feature that is a column of categories, in the order of their numbers, and none for
        identifiers; None for the others.
    module_ : nn.RTBM or nn.MixtureOfRTBMs
        The machine or mixture as a torch module. It is made once and kept.
    history_ : list of Record
        The iterations of the start that was taken.
    results_ : list of Result
        The results of all starts, in standardised coordinates.
    is_gaussian_ : bool
        Whether the fit was replaced by a Gaussian, or by Gaussians; see `fallback`.
    converged_ : bool
        Whether the solver stopped before its iterations were used up.
    n_hidden_, n_parameters_, n_iter_, n_features_in_ : int
        The number of hidden units of each machine, of free parameters (those of the Gaussians, if these replaced the
        fit), of iterations, and of features.
    constants_ : (n_features,)
        The values of the features that were left out as constant; NaN for the others.
    summary_ : dict
        These numbers, the solver, why it stopped, and the seconds that all starts took together; from a file, also the
        columns that were left out, and why.

    Examples
    --------
    >>> from rtbm import RTBMDensity, datasets
    >>> X = datasets.gamma.sample(500, seed=1)
    >>> model = RTBMDensity(n_hidden=2, random_state=0).fit(X)
    >>> round(model.score(X), 2)
    -2.31
    >>> model.sample(3, random_state=0).shape
    (3, 1)
    """

    results_: list[Result]
    history_: list[Record]
    summary_: Annotated[dict[str, Any], Summary, SearchSummary]
    n_features_in_: int
    columns_: ColumnKinds
    constants_: Floats

    def __init__(
        self,
        n_hidden: int = 2,
        *,
        n_components: int = 1,
        phase: str = "I",
        solver: str = "lbfgs",
        max_iter: int | None = None,
        tol: float = 1e-7,
        n_init: int = 8,
        regularization: float = 1.0,
        validation_fraction: float | None = None,
        n_iter_no_change: int = 20,
        fallback: str | None = "gaussian",
        bounds: Any = None,
        margins: str | None = None,
        drop_constant: bool = False,
        categorical_features: Any = "auto",
        atoms: Any = "auto",
        rounded: Any = "auto",
        handle_unknown: str = "warn",
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        device: str | None = None,
        verbose: int = 0,
    ):
        keep_arguments(self, locals())

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, columns: Sequence[str] | None = None) -> Self:
        """Fit the density to data.

        With 20,000 rows or more, all starts run on a sample, which also tells what columns are, and the best one goes
        on with all data, each step one pass over them (`solver` "lbfgs" or "em"). The result is the same for arrays and
        for data that are read in blocks, which need not fit into memory. Under torch.distributed each process takes its
        share of a file or a memory map, or its own blocks, and all end with the same density.

        Parameters
        ----------
        X : (n_samples, n_features), path, blocks, or Dask array or data frame
            Array or data frame. NaN entries are missing, and are integrated out. In blocks are read: the path of a .npy
            or Parquet file, a memory map of more than 3·10⁷ numbers, a list of arrays or data frames (rows, n_features)
            or of pairs (rows, weights), anything else that yields those each time it is iterated over, such as a
            DataLoader, and Dask collections, whose partitions stay on their workers.
        y : ignored
            For pipelines.
        sample_weight : (n_samples,), default=None
            How often each row counts: a weight of 0 is as if the row were absent, 2 as if it were there twice. The sum
            of the weights is the number of observations that the prior is compared with. For arrays and memory maps.
        columns : sequence of str, default=None
            The columns of a file to read; by default all with numbers, dates or levels.

        Examples
        --------
        >>> from rtbm import RTBMDensity, datasets
        >>> X = datasets.gamma.sample(1000, seed=1)
        >>> model = RTBMDensity(n_init=1, random_state=0).fit([X[:300], X[300:]])
        >>> bool(abs(model.score(X) - RTBMDensity(n_init=1, random_state=0).fit(X).score(X)) < 1e-12)
        True
        """
        self._check_parameters()
        last = None if not self.warm_start or getattr(self, "is_gaussian_", True) else (self._line_density, self._maps)
        forget(self, "_line_density")
        seed = self._seed()
        if columns is not None and not is_path(X):
            raise InvalidInputError("columns is for files: select the columns of other data before the fit")
        is_mapped = isinstance(X, np.memmap) and self._needs_memory()
        if comes_in_blocks(X, memory_limit()) and not is_mapped:
            open_file = partial(FileRows, columns=columns)
            return self._fit_blocks(open_data(X, sample_weight, self.categorical_features, open_file), seed)
        rows, weights, levels = self._read(X, sample_weight)
        if len(rows) < SAMPLED_ROWS or self._needs_memory() or [] in levels:
            self._fit_rows(*self._prepare_rows(rows, weights, levels, seed), seed, last)
        else:
            self._fit_data(LocalData(array_part(rows, weights)), levels, seed)
        return self

    def _can_mix(self) -> bool:
        return self.solver != "cma" and self.validation_fraction is None

    def _needs_memory(self) -> bool:
        """Whether the parameters need all data in memory."""
        has_start = self.warm_start or self.validation_fraction is not None
        return has_start or self.drop_constant or not SOLVERS[self.solver].takes_full_passes

    def _fit_rows(
        self, rows: Floats, weights: Floats, seed: int, last: tuple[Density, list[ColumnMap]] | None = None
    ) -> None:
        """Fit rows in memory, which are checked and inside of their bounds.

        `last` are the density and the maps of the last fit, from which to start.
        """
        rows, weights = distinct_rows(rows, weights)
        self._maps = make_maps(self.margins, self._bounds, rows, weights, self._sizes, self._kinds.near_zero)
        points, slopes = map_rows(self._maps, rows)
        log_slope = slopes.sum(axis=1)
        if self._sizes:
            self._fit_mixed(points, weights, log_slope, seed)
            return
        training, held_out = split_rows(len(points), self.validation_fraction, seed)
        has_missing, validation = bool(np.isnan(points).any()), None
        data = standardise(points[training], weights[training], log_slope[training], self._names(), has_missing)
        if len(held_out):
            validation = like(data, points[held_out], weights[held_out], log_slope[held_out])
        task = self._task(data, validation, seed)
        if last is not None and self._has_sizes(last[0], task) and are_alike(last[1], self._maps):
            inverse = torch.from_numpy(np.linalg.inv(data.root))
            first = task.family.vector(last[0].affine(inverse, -inverse @ torch.from_numpy(data.mean)))
            task = replace(task, first=first, n_init=1)

        def watched(vector: Tensor) -> Any:
            return self._mapped(self._density(task, vector))

        with self._progress(count_runs(task)) as report:
            outcome = find_machine(replace(task, report=report, watch=watch_of(self, watched)), self.fallback)
        self._keep(task, outcome)

    def _fit_mixed(self, points: Floats, weights: Floats, log_slope: Floats, seed: int) -> None:
        """Fit rows with categories or atoms by EM."""
        self._check_can_mix()
        discrete = states_of(points, self._sizes)
        numbers = [i for i in range(points.shape[1]) if i not in self._sizes]
        if not numbers:
            self._fit_latent_classes(discrete, weights, seed)
            return
        inner, names = points[:, numbers], [self._names()[i] for i in numbers]
        data = standardise(inner, weights, log_slope, names, bool(np.isnan(inner).any()))
        task = self._task(data, None, seed, discrete)
        with self._progress(count_runs(task)) as report:
            outcome = search(replace(task, report=report))
        self._keep_mixed(task, outcome, float(weights.sum()))

    def _check_can_mix(self) -> None:
        if not self._can_mix():
            raise InvalidInputError(
                'X has categories or atoms, which need solver="lbfgs" or "em", and validation_fraction=None'
            )

    @property
    def _mixed_limits(self) -> tuple[int, float]:
        """The most iterations and the tolerance of fits with categories or atoms."""
        return int(self.max_iter or MIXED_ITERATIONS), max(float(self.tol), MIXED_TOL)

    def _keep_mixed(self, task: DensityTask, outcome: Outcome, total: float) -> None:
        """Undo the standardisation of the best fit with categories or atoms, and keep it."""
        assert task.discrete is not None
        best = outcome.results[outcome.best]
        self.results_, self.history_ = outcome.results, best.history
        machines, tables = StateTables.of_vector(task.discrete.sizes, task.n_components, best.vector)
        mixture, n_atoms = self._density(task, without_strays(task, machines)), sum(map(bool, self._kinds.atoms))
        columns = split_columns(tables.probabilities, self._sizes, len(self._kept) + n_atoms)
        density = MixedDistribution(component_weights(mixture), components(mixture), columns)
        self._set_distribution(self._kinds.join(density, self._maps))
        self._warn_of_lost_probability()
        known = {
            "n_hidden": task.n_hidden,
            "members": [[task.n_components, 0]],
            "n_observations": total,
            "is_gaussian": False,
        }
        self._set_summary(known | outcome.summary(task.solver.max_iter))

    def _fit_latent_classes(
        self, discrete: Discrete, weights: Floats, seed: int, data: LocalData | None = None
    ) -> None:
        """Fit rows of categories alone: a mixture whose components have tables, and no machines.

        If the rows are a sample, with weights of the sum of all, the best fit goes on with all data.
        """
        begin, (max_iter, tol), total = time.perf_counter(), self._mixed_limits, float(weights.sum())
        sample = ArrayBlocks(torch.empty(len(weights), 0).double(), torch.from_numpy(weights), discrete.places)
        starts = range(self.n_init if self.n_components > 1 else 1)
        fits = [
            LatentClasses.random(discrete, weights, self.n_components, seed + i).improved(sample, total, max_iter, tol)
            for i in starts
        ]
        best = max(fits, key=lambda fit: fit.log_prob)
        if data is not None:
            best = best.improved(data, total, max_iter, POLISHING_TOL * tol)
        self.results_, self.history_ = [], []
        columns = [CategoryColumn(torch.from_numpy(table)) for table in best.tables.probabilities]
        self._set_distribution(MixedDistribution(np.exp(best.log_weights), [], columns))
        self._set_summary(
            {
                "n_hidden": 0,
                "members": [[self.n_components, 0]],
                "n_observations": total,
                "is_gaussian": False,
                "solver": "em",
                "n_init": len(fits),
                "n_iter": best.n_iter,
                "converged": best.converged,
                "reason": "converged" if best.converged else "max_iter",
                "seconds": time.perf_counter() - begin,
            }
        )
        if data is not None:
            self.summary_["log_likelihood"] = best.log_prob

    @staticmethod
    def _has_sizes(density: Density, task: DensityTask) -> bool:
        """Whether a density is a member of the family of a task."""
        machines = components(density)
        sizes = {(machine.n_visible, machine.n_hidden) for machine in machines}
        wanted = task.family.n_visible, task.n_hidden
        return sizes == {wanted} and len(machines) == task.n_components

    def _seed(self) -> int:
        """The seed of everything random, the same in all processes."""
        return gather_objects(draw_seed(self.random_state))[0]

    def _fit_blocks(self, data: LocalData, seed: int) -> Self:
        """Fit data that are read in blocks. Under torch.distributed the first process leads, and sends the result."""
        self._check_for_blocks()
        asked, known, names = self.categorical_features, data.columns.levels, data.columns.names
        if known and isinstance(asked, list | tuple):
            asked = {column: known.get(column) for column in asked}
        elif known and isinstance(asked, str):
            asked = known
        self.n_features_in_ = int(data.columns.number or 0)
        self.set_feature_names(names)

        def work(data: LocalData) -> bytes:
            found = data.map(LevelSearch(asked, names))
            self._frame = next((own for _, own in found if own is not None), None)
            levels = merge_levels([part for part, _ in found], self._columns()) or [None] * self.n_features_in_
            data.become(partial(replace, encode=partial(code_table, levels=levels, names=names)))
            self._fit_data(data, levels, seed)
            return self._state() if is_distributed() else b""

        state = data.lead(work)
        if state:
            self.__dict__.update(torch.load(io.BytesIO(state), map_location=self.device or "cpu", weights_only=False))
        self.summary_["left_out"] = dict(data.columns.left_out)
        return self

    def _state(self) -> bytes:
        """The fitted attributes, for other processes."""
        buffer, parameters = io.BytesIO(), self.get_params(deep=False)
        torch.save({name: value for name, value in self.__dict__.items() if name not in parameters}, buffer)
        return buffer.getvalue()

    def _fit_data(self, data: LocalData, levels: Levels, seed: int) -> None:
        """Fit all data, after a pass for their summary. Few rows are fitted as an array.

        The summary tells what columns are. If numbers are mapped, split or spread then, a second pass follows.
        """
        self.columns_ = replace(ColumnKinds.plain(len(levels)), levels=levels)
        self.constants_ = np.full(len(levels), np.nan)
        encoder = RowEncoder(self._names(), self.columns_, make_bounds(self.bounds, self._columns()), seed)
        found = summarise(data, encoder)
        rows, weights = found.sample.rows, found.sample.weights
        if found.has_all_rows:
            self._fit_rows(*self._prepare_rows(rows, weights, levels, seed), seed)
            self.summary_["log_likelihood"] = float(weights @ self._log_prob(rows) / weights.sum())
            return
        encoder = self._learn_encoder(found, seed)
        if not encoder.is_trivial:
            found = summarise(data, encoder)
        rows, weights = split_sample(found, encoder)
        if not encoder.numbers:
            prepare(data, encoder, np.empty(0), np.empty((0, 0)), found.total, self.device)
            self._fit_latent_classes(states_of(rows, self._sizes), weights, seed, data)
            return
        discrete = states_of(rows, self._sizes) if self._sizes else None
        task = self._task(standardise_sample(found, encoder, rows, weights), None, seed, discrete)
        with self._progress(count_runs(task) + 1) as report:
            told = replace(task, report=report)
            outcome, full = fit_all(told, self.fallback, data, encoder, found)
        if discrete is None:
            self._keep(task, outcome, found.total, full)
        else:
            self._keep_mixed(task, outcome, found.total)
        log_prob = full.gaussian if self.is_gaussian_ else full.log_prob
        self.summary_["log_likelihood"] = log_prob - task.data.log_volume

    def _learn_encoder(self, found: DataSummary, seed: int) -> RowEncoder:
        """What columns are, their bounds and maps, from the sample of a summary."""
        rows, weights = found.sample.rows, found.sample.weights
        bounds = self._find_columns(rows, weights, self.columns_.levels)
        if self._sizes:
            self._check_can_mix()
        self._leave_out_constants(rows)
        contact = bounds.contact_beside(found.contact, self._kinds.atoms)
        self._bounds, self._maps = bounds.closed(contact), []
        self._warn_of_values(self._kinds.split(rows)[:, : rows.shape[1]], contact)
        encoder = RowEncoder(self._names(), self._kinds, self._bounds, seed, [])
        self._maps = make_maps(
            self.margins, self._bounds, *split_sample(found, encoder), self._sizes, self._kinds.near_zero
        )
        return encoder._replace(maps=self._maps)

    def _check_for_blocks(self) -> None:
        """Check that the parameters suit data that are read in blocks."""
        if not SOLVERS[self.solver].takes_full_passes:
            raise InvalidInputError(f'data that are read in blocks need solver="lbfgs" or "em", got {self.solver!r}')
        if self.validation_fraction is not None or self.drop_constant:
            raise InvalidInputError(
                "data that are read in blocks need validation_fraction=None and drop_constant=False, got "
                f"validation_fraction={self.validation_fraction!r}, drop_constant={self.drop_constant!r}: load a "
                "sample that fits into memory for these"
            )

    def _progress(self, n_runs: int) -> AbstractContextManager[Report | None]:
        return progress_bar(n_runs, shown=bool(self.verbose))

    def _keep(
        self, task: DensityTask, outcome: Outcome, total: float | None = None, full: FullDataScore | None = None
    ) -> None:
        """Compare the best fit with Gaussians, undo the standardisation, and keep the result.

        `total` is the number of observations and `full` what is known of them, if the data of the task are a sample.
        """
        best = self._evaluable(task, outcome.results[outcome.best])
        vector, n_gaussians = find_simpler(task, best.vector, self.fallback, total, full)
        vector = without_strays(task, vector)
        self.results_, self.history_ = outcome.results, best.history
        self._set_distribution(self._density(task, vector))
        self._warn_of_lost_probability()
        self._fit_result = task.family, vector, task.data.mean, task.data.root
        known = {
            "n_hidden": task.n_hidden,
            "members": [[task.n_components, n_gaussians]],
            "n_observations": total or float(task.data.weights.sum()),
            "is_gaussian": n_gaussians > 0,
        }
        self._set_summary(known | outcome.summary(task.solver.max_iter))

    def _density(self, task: DensityTask, vector: Tensor) -> Density:
        """The density of a vector, in the coordinates of the data."""
        machine = task.family.distribution(vector)
        root, mean = (torch.from_numpy(part).to(machine.device) for part in (task.data.root, task.data.mean))
        return machine.affine(root, mean).detach()

    def _held_out_log_prob(self, X: Floats) -> Floats:
        """log P(x) (n_samples,), right to 1e-7 on average: quicker than exact values. −∞ where it leaves float64."""
        if self._sizes:
            return self._log_prob(X)
        family, vector, mean, root = self._fit_result
        line, log_slope = self._to_line(X)
        gaps = np.isnan(line).any(axis=1)
        if gaps.any() and np.count_nonzero(root) > len(
            root
        ):  # axes mix features, since the data of the fit had no gaps
            log_prob = np.empty(len(X))
            log_prob[gaps] = self._log_prob(X[gaps])
            if not gaps.all():
                log_prob[~gaps] = self._held_out_log_prob(X[~gaps])
            return log_prob
        z = to_standard(line, mean, root)
        within = np.nanmax(np.abs(z), axis=1) < LARGEST_DISTANCE
        points = torch.from_numpy(np.ascontiguousarray(z[within])).to(vector.device)
        log_prob = np.full(len(X), -np.inf)
        try:
            log_prob[within] = objective.log_prob(family, vector, points).cpu().numpy()
        except FAILURES:
            log_prob[within] = self._log_prob(X[within])
            return log_prob
        return log_prob - log_scales(line, root) + log_slope

    def _evaluable(self, task: DensityTask, result: Result) -> Result:
        """The result, or an earlier iteration if the last density cannot be evaluated on a few rows of the data.

        Machines with parameters of moderate size are not tried, because they can always be evaluated.
        """
        if float(result.vector.abs().max()) < MODERATE:
            return result
        step = max(1, len(task.data.z) // EVALUATED_ROWS)
        rows = torch.from_numpy(task.data.mean + task.data.filled[::step] @ task.data.root.T)
        reason = None
        for vector in [result.vector, *result.trail]:
            failure = _failure(self._density(task, without_strays(task, vector)), rows)
            reason = reason or failure
            if failure is None:
                break
        else:
            raise InvalidInputError(
                f"no iteration of the solver {result.solver!r} gave a density that can be evaluated ({reason}): raise "
                "regularization, or take fewer hidden units"
            )
        if reason is None:
            return result
        warnings.warn(
            f"the solver {result.solver!r} ended at a density that cannot be evaluated ({reason}). The fit is an "
            "earlier iteration of it: raise regularization",
            RuntimeWarning,
            stacklevel=4,
        )
        return replace(result, vector=vector)

    def _check_parameters(self) -> None:
        """Check the parameters, which scikit-learn lets be set to anything, before the fit."""
        Family.check_sizes(1, self.n_hidden, self.n_components)  # again when the number of features is known
        check_choice(self.phase, "phase", PHASES)
        check_search(self, SOLVERS)
        check_flag(self.drop_constant, "drop_constant")
        check_flag(self.warm_start, "warm_start")
        check_choice(self.handle_unknown, "handle_unknown", UNKNOWN)
        if self.fallback is not None:
            check_choice(self.fallback, "fallback", FALLBACKS)
        if self.margins is not None:
            check_choice(self.margins, "margins", MARGINS)
        check_number(self.regularization, "regularization", 0.0, math.inf)

    def _task(
        self, data: Standardised, validation: Standardised | None, seed: int, discrete: Discrete | None = None
    ) -> DensityTask:
        options = task_options(self, SOLVERS, seed)
        if discrete is not None:
            max_iter, tol = self._mixed_limits
            options["solver"] = SOLVERS["em"](max_iter=max_iter, tol=tol, seed=seed)
        return DensityTask(
            n_hidden=int(self.n_hidden),
            n_components=self.n_components,
            phase=self.phase,
            data=data,
            validation=validation,
            regularization=self.regularization,
            discrete=discrete,
            **options,
        )


def _failure(density: Density, rows: Tensor) -> str | None:
    """Why a density cannot be evaluated at some rows; None if it can."""
    rows = rows.to(density.device)
    try:
        with torch.no_grad():
            log_prob = density.log_prob(rows)
    except FAILURES as error:
        return str(error).split(". ")[0]
    return None if bool(log_prob.isfinite().all()) else "log P leaves float64"
