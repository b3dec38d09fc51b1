"""Density estimation by Riemann-Theta Boltzmann machines, with the conventions of scikit-learn."""

import contextlib
import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from torch import Tensor

from rtbm.common import Floats
from rtbm.distributions import RTBMMixture
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import (
    check_compute_device,
    check_flag,
    check_jobs,
    check_number,
    split_rows,
    warn_of_spikes,
)
from rtbm.estimators.fallback import Whole, find_simpler, without_strays
from rtbm.estimators.fitted import FittedDensity, component_weights, components, is_large
from rtbm.estimators.fitting import (
    NOT_LIKELIHOOD,
    Standardised,
    Task,
    from_standard,
    like,
    log_scales,
    standardise,
    to_standard,
)
from rtbm.estimators.progress import progress_bar
from rtbm.estimators.search import Outcome, Report, count_runs, search
from rtbm.estimators.selection import choose_n_hidden, most_runs
from rtbm.estimators.sources import (
    AnySource,
    Described,
    agree_on_columns,
    is_dask,
    is_source,
    open_source,
    plain_errors,
    work_on,
)
from rtbm.estimators.streaming import (
    EXACT,
    Line,
    LineBatches,
    fit_exactly,
    fit_stream,
    open_batches,
    standardise_sample,
    survey,
    survey_batches,
)
from rtbm.parameters import COUPLINGS
from rtbm.training import SOLVERS, Result, Settings
from rtbm.training.distributed import gather_objects, together
from rtbm.training.family import FAILURES, Density
from rtbm.training.solvers import DEFAULT_ITERATIONS
from rtbm.validation import check_choice, check_integer

SMOOTHED = ("lbfgs", "adam", "cma")
"""Solvers that know of `smoothness`."""
FALLBACKS = ("gaussian", "gaussians")
EVALUATED_ROWS = 30
"""After a fit the density is evaluated on about this many rows, to see that it can be."""
MODERATE = 12.0
"""A density can be evaluated if no free parameter of its machines is larger."""
AVERAGED_WITHIN = 0.01
"""With `average`, starts count whose objective is at most this much worse than the best."""


class RTBMDensity(FittedDensity):
    """A density fitted by one Riemann-Theta Boltzmann machine, or by a mixture of them.

    The machine is fitted by penalised maximum likelihood from several data-driven starts. Its density, samples,
    conditionals and marginals are exact.

    Parameters
    ----------
    n_hidden : int or "auto"
        Hidden units of each machine. More make finer structure possible: a dense machine with N units starts as 2^N
        Gaussians. "auto" takes the number with the best held-out likelihood.
    n_components : int
        Machines in the mixture.
    hidden : "dense" or "diagonal"
        The form of Q. Diagonal machines may have hundreds of hidden units, for up to three features.
    phase : "I" or "II"
        The phase in which the parameters are shown, and that `transform` follows. Densities are the same in both.
    solver : "lbfgs", "adam", "em", "cma", "score_matching" or "pcd"
        "lbfgs" and "em" (dense only) take all data at once, "adam" takes batches, "cma" needs no derivatives, and
        "score_matching" and "pcd" (diagonal only) need no normaliser, for many features.
    max_iter : int
        Iterations, generations ("cma") or epochs ("adam", "pcd"); None for the solver's default.
    tol : float
        Iterations end when the objective improves by less.
    n_init : int
        Starts. The first is the same for all seeds.
    regularization : float
        The strength of the prior against fine structure; it plays the part of a bandwidth, and fades as data become
        many. 0 is maximum likelihood (with a weak prior on the hidden units alone), which overfits with more than two
        hidden units.
    smoothness : float
        The strength of a prior for one dense machine that keeps the weights of neighbouring Gaussians even, and its
        hidden units binary: for flat densities with sharp edges, with some six hidden units and little regularization.
        Not for "em".
    validation_fraction : float
        The share of the data that is set aside: iterations end when their likelihood has not improved for
        `n_iter_no_change` iterations, and the best start and iteration are chosen by them. None sets nothing aside.
    n_iter_no_change : int
        See `validation_fraction`.
    average : bool
        Whether to return the average of all good starts, a mixture, instead of the best one.
    fallback : "gaussian", "gaussians" or None
        By default a fit that does not beat a single Gaussian is replaced by it (a member of the family whose hidden
        units are all but continuous). It beats it by the Bayesian information criterion, or by a gain that chance
        would give once in 10^6, and with more observations than parameters. With "gaussians", a mixture has to beat a
        mixture of as many Gaussians as well, unless entries are missing.
    bounds : pair or list of pairs
        (low, high) for data on an interval, (low, None) or (None, high) for a half line, or one of these or None for
        each feature. The machine then describes the logarithm, or the logit, of the distance from the bounds.
    drop_constant : bool
        Whether features with only one value are left out of the density. By default they are an error. The density is
        then that of the other features: `score_samples` ignores the constant ones, and `sample` fills them in.
    batch_size : int
        Rows in a batch of "adam" (by default 500, or 4096 of a file) and "pcd" (by default all).
    learning_rate : float
        The first step size of "adam" and "pcd"; `fit_stream`, which starts from a fit, takes a tenth of it.
    random_state : int, RandomState or None
        The same integer gives the same result, bit for bit.
    n_jobs : int
        Starts that run at the same time, through joblib and whichever of its backends is active.
    device : str
        A torch device, as "cuda".
    verbose : int
        Whether to show a progress bar.

    Attributes
    ----------
    distribution_ : RTBMDistribution or RTBMMixture
        The fitted density; with `bounds`, that of the transformed features.
    module_ : nn.RTBM or nn.MixtureOfRTBMs
        The same as a torch module.
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
    selection_ : dict
        With n_hidden="auto": the held-out log-likelihood for each number of hidden units.

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

    def __init__(
        self,
        n_hidden: int | str = 2,
        *,
        n_components: int = 1,
        hidden: str = "dense",
        phase: str = "I",
        solver: str = "lbfgs",
        max_iter: int | None = None,
        tol: float = 1e-7,
        n_init: int = 8,
        regularization: float = 1.0,
        smoothness: float = 0.0,
        validation_fraction: float | None = None,
        n_iter_no_change: int = 20,
        average: bool = False,
        fallback: str | None = "gaussian",
        bounds: Any = None,
        drop_constant: bool = False,
        batch_size: int | None = None,
        learning_rate: float = 0.03,
        random_state: Any = None,
        n_jobs: int | None = None,
        device: str | None = None,
        verbose: int = 0,
    ):
        self.n_hidden = n_hidden
        self.n_components = n_components
        self.hidden = hidden
        self.phase = phase
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.regularization = regularization
        self.smoothness = smoothness
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.average = average
        self.fallback = fallback
        self.bounds = bounds
        self.drop_constant = drop_constant
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the density to data.

        Data that need not fit into memory are read a block at a time: all starts run on a sample of 20,000 rows, and
        the best one goes on with all data, each step one pass over them (`solver` "lbfgs" or "em"; for "adam" see
        `fit_stream`). Under torch.distributed each process takes its share of a file or a memory map, or its own
        blocks, and all end with the same density.

        Parameters
        ----------
        X : (n_samples, n_features), path, blocks, or Dask array or data frame
            Array or data frame. NaN entries are missing, and are integrated out. In blocks are read: the path of a .npy
            or Parquet file, a memory map of more than 2·10⁷ numbers, a list of arrays (rows, n_features) or of pairs
            (rows, weights), anything else that yields those each time it is iterated over, and Dask collections, whose
            partitions stay on their workers.
        y : ignored
            For pipelines.
        sample_weight : (n_samples,), default=None
            How often each row counts: a weight of 0 is as if the row were absent, 2 as if it were there twice. The sum
            of the weights is the number of observations that the prior is compared with. For arrays and memory maps.

        Examples
        --------
        >>> from rtbm import RTBMDensity, datasets
        >>> X = datasets.gamma.sample(1000, seed=1)
        >>> model = RTBMDensity(n_init=1, random_state=0).fit([X[:300], X[300:]])
        >>> bool(abs(model.score(X) - RTBMDensity(n_init=1, random_state=0).fit(X).score(X)) < 1e-4)
        True
        """
        in_blocks = not isinstance(X, np.memmap) or (self.solver in EXACT and not self._needs_memory())
        if in_blocks and is_source(X):
            return self._fit_source(X, None, sample_weight)
        self._check_parameters()
        self._forget()
        rows, weights = self._prepare(X, sample_weight)
        line, log_slope = self._bounds.to_line(rows)
        seed = self._seed()
        training, held_out = split_rows(len(rows), self.validation_fraction, seed)
        has_missing = bool(np.isnan(line).any())
        data = standardise(line[training], weights[training], log_slope[training], self._names(), has_missing)
        validation = None
        if len(held_out):
            validation = like(data, line[held_out], weights[held_out], log_slope[held_out])
        self._fit_standardised(data, validation, seed)
        return self

    def _seed(self) -> int:
        """A number that decides all that is random, the same in all processes."""
        return gather_objects(int(check_random_state(self.random_state).randint(2**31)))[0]

    def fit_stream(self, source: Any, columns: Sequence[str] | None = None) -> Self:
        """Fit the density to data that need not fit into memory.

        With solver "lbfgs" or "em" this is `fit` with a choice of columns. With "adam", one pass draws a sample and
        finds a start on it, by L-BFGS from `n_init` starts; then Adam takes `max_iter` epochs of batches, in which
        steps are many and cheap. Under torch.distributed each process reads its share of a file, or its own loader, and
        all end with the same density.

        Parameters
        ----------
        source : path, DataLoader, iterable of batches, or what else `fit` reads in blocks
            A .npy or .parquet file, which is read in blocks or row groups; or batches (rows, n_features), or pairs of
            those and weights (rows,), that can be iterated over once for each epoch.
        columns : sequence of str, default=None
            The columns of a file to read; by default all that hold numbers.

        Examples
        --------
        >>> from rtbm import RTBMDensity, datasets
        >>> X = datasets.gamma.sample(1000, seed=1)
        >>> batches = [X[:500], X[500:]]  # or torch.utils.data.DataLoader(X, batch_size=500)
        >>> model = RTBMDensity(solver="adam", max_iter=3, n_init=1, random_state=0).fit_stream(batches)
        >>> model.sample(2).shape
        (2, 1)
        """
        return self._fit_source(source, columns, None)

    def _fit_source(self, source: Any, columns: Sequence[str] | None, weights: Any) -> Self:
        """Fit data that are read in blocks or batches."""
        self._check_parameters()
        self._check_for_source(source, weights)
        self._forget()
        seed = self._seed()
        if self.solver == "adam":
            self._fit_batches(source, columns, seed)
            return self
        rows = together(lambda: open_source(source, columns, weights))
        described = agree_on_columns(rows.describe)
        self._set_columns(described)
        with plain_errors():
            state = work_on(rows, lambda everything: self._fit_exactly(everything, seed))
        self.__dict__.update(torch.load(io.BytesIO(state), map_location=self.device or "cpu", weights_only=False))
        self.summary_["left_out"] = dict(described.left_out)
        return self

    def _check_for_source(self, source: Any, weights: Any) -> None:
        """Check that the parameters suit data that are read in blocks."""
        if self.solver not in (*EXACT, "adam") or (self.solver == "adam" and is_dask(source)):
            raise InvalidInputError(
                f'data that are read in blocks need solver="lbfgs" or "em" (or "adam", but not with Dask), got '
                f"{self.solver!r}"
            )
        if self._needs_memory():
            raise InvalidInputError(
                "data that are read in blocks need a number n_hidden, validation_fraction=None, drop_constant=False "
                f"and average=False, got n_hidden={self.n_hidden!r}, validation_fraction={self.validation_fraction!r}, "
                f"drop_constant={self.drop_constant!r}, average={self.average!r}: load a sample that fits into memory "
                "for these"
            )
        if weights is not None and not isinstance(source, np.memmap):
            raise InvalidInputError("sample_weight is for arrays: give blocks as pairs (rows, weights)")

    def _needs_memory(self) -> bool:
        """Whether parameters are set that need all data in memory."""
        is_auto = isinstance(self.n_hidden, str)
        return is_auto or self.validation_fraction is not None or self.drop_constant or self.average

    def _set_columns(self, described: Described) -> None:
        self.n_features_in_ = int(described.n_features or 0)
        self.constants_ = np.full(self.n_features_in_, np.nan)
        self.set_feature_names(described.names)
        self._make_bounds()

    def _fit_exactly(self, source: AnySource, seed: int) -> bytes:
        """Fit all data of a source; returns what a fit sets, in a form that other processes can be sent."""
        line = Line(self._bounds, self._names())
        seen = survey(source, line, seed)
        data = standardise_sample(seen, self._names())
        warn_of_spikes(self._bounds.from_line(seen.sample.rows), self._names())
        task = self._task(data, None, seed, self.n_hidden)
        with self._progress(count_runs(task) + 1) as report:
            outcome, whole = fit_exactly(replace(task, report=report), source, line, seen)
        self._take(task, outcome, seen.total, whole)
        log_prob = whole.gaussian if self.is_gaussian_ else whole.log_prob
        self.summary_["log_likelihood"] = log_prob - data.log_volume
        buffer, parameters = io.BytesIO(), self.get_params(deep=False)
        torch.save({name: value for name, value in self.__dict__.items() if name not in parameters}, buffer)
        return buffer.getvalue()

    def _fit_batches(self, source: Any, columns: Sequence[str] | None, seed: int) -> None:
        """Fit the sample, and go on with Adam over batches."""
        batches, described = open_batches(source, columns, self.batch_size, seed)
        self._set_columns(described)
        line = Line(self._bounds, self._names())
        with plain_errors():
            seen = survey_batches(batches, line, seed)
            data = standardise_sample(seen, self._names())
            task = self._task(data, None, seed, self.n_hidden)
            with self._progress(count_runs(task) + 1) as report:
                result = fit_stream(replace(task, report=report), LineBatches(batches, line, data), seen.total)
        self._take(task, Outcome([result], 0), seen.total)
        self.summary_["left_out"] = dict(described.left_out)

    def _progress(self, n_runs: int, title: str = "fitting") -> contextlib.AbstractContextManager[Report | None]:
        is_likelihood = self.solver not in NOT_LIKELIHOOD
        return progress_bar(n_runs, title, is_likelihood) if self.verbose else contextlib.nullcontext()

    def _forget(self) -> None:
        """Forget an earlier fit: if this one fails, nothing must be left that fits neither."""
        for name in ("distribution_", "selection_"):
            self.__dict__.pop(name, None)

    def _fit_standardised(self, data: Standardised, validation: Standardised | None, seed: int) -> None:
        task = self._task(data, validation, seed, self.n_hidden)
        if self.n_hidden == "auto":
            with self._progress(most_runs(task), "choosing n_hidden") as report:
                n_hidden, self.selection_ = choose_n_hidden(replace(task, report=report))
            task = self._task(data, validation, seed, n_hidden)
        with self._progress(count_runs(task)) as report:
            outcome = search(replace(task, report=report))
        self._take(task, outcome)

    def _take(self, task: Task, outcome: Outcome, total: float | None = None, whole: Whole | None = None) -> None:
        """Keep an outcome: undo the standardisation, and replace the fit by a Gaussian where that is no worse.

        `total` is the number of observations if the data of the task are but a sample, and `whole` what is known of
        all data.
        """
        best = self._evaluable(task, outcome.results[outcome.best])
        self.results_, self.history_ = outcome.results, best.history
        if not best.converged:
            warnings.warn(
                f"the solver {best.solver!r} stopped at max_iter={task.settings.max_iter}: raise max_iter "
                "(--iterations) or tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        simpler = find_simpler(task, best.vector, self.fallback, total, whole)
        vectors = [best.vector if simpler is None else simpler.vector]
        if simpler is None and self.average:
            good = [r for r in outcome.results if r.objective <= best.objective + AVERAGED_WITHIN]
            vectors = [self._evaluable(task, result).vector for result in good]
        vectors = [without_strays(task, vector) for vector in vectors]
        self._set_distribution(_average([self._density(task, vector) for vector in vectors]))
        self._fit_result = task.family, vectors, task.data.mean, task.data.root
        self._set_summary(
            {
                "n_hidden": task.n_hidden,
                "members": [[task.n_components, simpler.n_gaussians if simpler else 0]] * len(vectors),
                "n_observations": total or float(task.data.weights.sum()),
                "solver": self.solver,
                "n_init": len(outcome.results),
                "n_iter": best.history[-1].step,
                "reason": best.reason,
                "converged": best.converged,
                "is_gaussian": simpler is not None,
                "seconds": sum(result.seconds for result in outcome.results),
            }
        )

    def _density(self, task: Task, vector: Tensor) -> Density:
        """The density of a vector, in the coordinates of the data."""
        machine = task.family.distribution(vector)
        root, mean = (torch.from_numpy(part).to(machine.device) for part in (task.data.root, task.data.mean))
        return machine.affine(root, mean).detach()

    def _held_out_log_prob(self, X: Floats) -> Floats:
        """log P(x) (n_samples,) of each row, right to 1e-7 on average, without the preparations for exact values."""
        family, vectors, mean, root = self._fit_result
        line, log_slope = self._bounds.to_line(X)
        z = torch.from_numpy(np.ascontiguousarray(to_standard(line, mean, root))).to(vectors[0].device)
        try:
            columns = torch.stack([family.log_prob(vector, z) for vector in vectors], 1)
        except FAILURES:
            return self._log_prob(X)
        log_prob = columns.logsumexp(1) - math.log(len(vectors))
        return log_prob.cpu().numpy() - log_scales(line, root) + log_slope

    def _evaluable(self, task: Task, result: Result) -> Result:
        """A result, or its latest iteration whose density can be evaluated on some of the data.

        Parameters of moderate size need no trial.
        """
        if task.hidden == "dense" and float(result.vector.abs().max()) < MODERATE:
            return result
        step = max(1, len(task.data.z) // EVALUATED_ROWS)
        rows = torch.from_numpy(from_standard(task.data.z[::step], task.data.mean, task.data.root))
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
            stacklevel=5,
        )
        return replace(result, vector=vector)

    def _check_parameters(self) -> None:
        """Check what scikit-learn lets be set to anything, before any work is done."""
        if not isinstance(self.n_hidden, str) or self.n_hidden != "auto":
            check_integer(self.n_hidden, "n_hidden", 1)
        check_integer(self.n_components, "n_components", 1)
        check_integer(self.n_init, "n_init", 1)
        check_integer(self.n_iter_no_change, "n_iter_no_change", 1)
        for name in ("max_iter", "batch_size"):
            if getattr(self, name) is not None:
                check_integer(getattr(self, name), name, 1)
        check_choice(self.hidden, "hidden", COUPLINGS)
        check_choice(self.phase, "phase", ("I", "II"))
        check_choice(self.solver, "solver", SOLVERS)
        check_flag(self.average, "average")
        check_flag(self.drop_constant, "drop_constant")
        check_jobs(self.n_jobs)
        check_compute_device(self.device)
        if self.fallback is not None:
            check_choice(self.fallback, "fallback", FALLBACKS)
        check_number(self.tol, "tol", 0.0, math.inf)
        check_number(self.learning_rate, "learning_rate", 0.0, math.inf, strict=True)
        check_number(self.regularization, "regularization", 0.0, math.inf)
        check_number(self.smoothness, "smoothness", 0.0, math.inf)
        if self.smoothness > 0 and (self.n_components > 1 or self.hidden != "dense" or self.solver not in SMOOTHED):
            raise InvalidInputError(
                f"smoothness={self.smoothness} is for one dense machine and the solvers {', '.join(SMOOTHED)}, got "
                f"n_components={self.n_components}, hidden={self.hidden!r}, solver={self.solver!r}: set it to 0"
            )
        if self.validation_fraction is not None:
            check_number(self.validation_fraction, "validation_fraction", 0.0, 1.0, strict=True)

    def _task(self, data: Standardised, validation: Standardised | None, seed: int, n_hidden: int | str) -> Task:
        settings = Settings(
            self.solver,
            self.max_iter or DEFAULT_ITERATIONS[self.solver],
            self.tol,
            self.batch_size,
            self.learning_rate,
            seed,
        )
        return Task(
            int(n_hidden) if isinstance(n_hidden, Integral) else 1,
            self.n_components,
            self.hidden,
            self.phase,
            data,
            validation,
            self.regularization,
            self.smoothness,
            settings,
            self.n_iter_no_change,
            self.n_init,
            not self.average,
            self.n_jobs,
            self.device,
        )


def _failure(density: Density, rows: Tensor) -> str | None:
    """Why a density cannot be evaluated at some rows; None if it can be, apart from a normaliser that is estimated."""
    rows = rows.to(density.device)
    try:
        with torch.no_grad():
            log_prob = density.free_energy(rows) if is_large(density) else density.log_prob(rows)
    except FAILURES as error:
        return str(error).split(". ")[0]
    return None if bool(log_prob.isfinite().all()) else "log P leaves float64"


def _average(machines: list[Density]) -> Density:
    """The mixture of equal parts."""
    if len(machines) == 1:
        return machines[0]
    weights = torch.cat([component_weights(machine) for machine in machines]) / len(machines)
    return RTBMMixture(weights, [part for machine in machines for part in components(machine)])
