"""Checks of parameters, and the preparation of rows that all estimators share."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from numbers import Integral, Number, Real
from typing import Any

import numpy as np
import torch
from sklearn import get_config
from sklearn.base import is_regressor
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, validate_data

from rtbm.common import Floats
from rtbm.errors import InvalidInputError, NotNumbersError, SpikeWarning
from rtbm.validation import check_choice, check_integer, listed

FEW_VALUES, REPEATS = 10, 5
"""A column is discrete if it has at most FEW_VALUES distinct values, with REPEATS rows a value on average."""
BOUND_SHARE, BOUND_RATIO = 0.01, 5.0
"""The smallest or largest value is a spike if this share of the rows has it, BOUND_RATIO times as many as any of the
values near it."""
INNER_SHARE, INNER_RATIO = 0.05, 10.0
"""The same for the commonest value, which is often somewhat more frequent than others in rounded data."""
NEAR_VALUES = 3
"""How many values on either side count as near."""
LARGEST_WEIGHT, SMALLEST_WEIGHT = 1e15, 1e-100
"""The largest weight is kept between these by a factor that all weights share, and weights that are smaller than the
largest by the factor SMALLEST_WEIGHT count as 0. So no sum leaves float64. No fit can tell the difference."""


def check_number(value: Any, name: str, low: float, high: float, strict: bool = False) -> None:
    """A number between two others."""
    inside = isinstance(value, Real) and not isinstance(value, bool) and low <= float(value) <= high
    if not inside or (strict and float(value) in (low, high)):
        between = "strictly between" if strict else "between"
        raise InvalidInputError(f"{name} must be a number {between} {low:g} and {high:g}, got {value!r}")


def check_search(estimator: Any, solvers: Any) -> None:
    """Check the parameters of solvers and starts, which scikit-learn lets be set to anything."""
    for name in ("n_init", "n_iter_no_change", "max_iter"):
        value = getattr(estimator, name)
        if value is not None or name.startswith("n_"):
            check_integer(value, name, 1)
    check_choice(estimator.solver, "solver", tuple(solvers))
    check_number(estimator.tol, "tol", 0.0, math.inf)
    if estimator.validation_fraction is not None:
        check_number(estimator.validation_fraction, "validation_fraction", 0.0, 1.0, strict=True)
    check_jobs(estimator.n_jobs)
    check_compute_device(estimator.device)


def forget(estimator: Any, *private: str) -> None:
    """Delete fitted attributes, so that a failed refit leaves no stale state."""
    for name in [name for name in vars(estimator) if name.endswith("_") or name in private]:
        delattr(estimator, name)


def keep_arguments(estimator: Any, arguments: dict[str, Any]) -> None:
    """Set each argument of `__init__` as the attribute of its name, as scikit-learn asks; for `locals()` there."""
    for name in estimator._get_param_names():
        setattr(estimator, name, arguments[name])


def check_flag(value: Any, name: str) -> None:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidInputError(f"{name} must be True or False, got {value!r}")


def check_compute_device(device: Any) -> None:
    """None, or a device of this machine."""
    if device is None:
        return
    try:
        if torch.empty(0, device=device).is_meta:
            raise RuntimeError("a device without numbers")
    except (AssertionError, RuntimeError, TypeError) as error:
        raise InvalidInputError(f"device must be a torch device of this machine, got {device!r} ({error})") from None


def check_jobs(n_jobs: Any) -> None:
    """None, or an integer other than 0."""
    if n_jobs is not None and (isinstance(n_jobs, bool) or not isinstance(n_jobs, Integral) or n_jobs == 0):
        raise InvalidInputError(f"n_jobs must be None or an integer other than 0, got {n_jobs!r}")


def draw_seed(random_state: Any) -> int:
    """A seed below 2^31, drawn from None, an integer, or a Generator or RandomState of NumPy, which it advances.

    Examples
    --------
    >>> draw_seed(0) == draw_seed(0)
    True
    >>> generator = np.random.default_rng(0)
    >>> draw_seed(generator) == draw_seed(generator)
    False
    """
    if isinstance(random_state, np.random.Generator | np.random.BitGenerator | np.random.SeedSequence):
        return int(np.random.default_rng(random_state).integers(2**31))
    try:
        return int(check_random_state(random_state).randint(2**31))
    except ValueError:
        raise InvalidInputError(
            "random_state must be None, an integer from 0 to 2^32 - 1, or a Generator or RandomState of NumPy, got "
            f"{random_state!r}"
        ) from None


def memory_limit() -> int:
    """The bytes that data may take in memory: a quarter of scikit-learn's `working_memory`, 256 MiB by default.

    Memory maps, and files on the command line, with more numbers than that are fitted in blocks. Prepared blocks stay
    in memory up to this size; larger ones are read and prepared anew for each step.
    """
    return int(get_config()["working_memory"] * 2**18)


def to_numpy(array: Any) -> Any:
    """An array of another library (torch, CuPy, JAX) as one of NumPy; anything else as it is.

    It is a view where the array lies in the memory of the CPU, and one copy where it lies on a GPU. Masked cells become
    NaN, or None if they are no numbers.

    Examples
    --------
    >>> tensor = torch.zeros(2)
    >>> bool(np.shares_memory(to_numpy(tensor), tensor.numpy()))
    True
    """
    if isinstance(array, np.ma.MaskedArray):
        if not np.ma.is_masked(array):
            return array.data
        is_number = array.dtype.kind in "biuf"
        cells = array.data.astype(np.float64 if is_number else object)
        cells[np.ma.getmaskarray(array)] = np.nan if is_number else None
        return cells
    if hasattr(array, "collect") and is_frame(array):
        raise InvalidInputError("a LazyFrame holds no rows yet: collect() it first")
    if isinstance(array, np.ndarray | np.generic) or not hasattr(array, "__dlpack__"):
        return array
    tensor = array if isinstance(array, torch.Tensor) else torch.from_dlpack(array)
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # NumPy has no bfloat16


def check_weights(sample_weight: Any, X: Floats) -> Floats:
    """The weights (n,) of rows, 1 by default, as far as float64 can hold their sums: see LARGEST_WEIGHT."""
    weights = _check_sample_weight(to_numpy(sample_weight), X, dtype=np.float64, ensure_non_negative=True)
    largest = weights.max(initial=0.0)
    if largest > 0 and not SMALLEST_WEIGHT <= largest <= LARGEST_WEIGHT:
        weights = weights / largest * np.clip(largest, SMALLEST_WEIGHT, LARGEST_WEIGHT)
    return np.where(weights >= SMALLEST_WEIGHT * weights.max(initial=0.0), weights, 0.0)


def check_rows(estimator: Any, X: Any, *labels: Any, **options: Any) -> Any:
    """`validate_data` of scikit-learn in float64.

    Errors name the columns that share a name, or hold text, dates or infinite numbers.
    """
    X, *y = map(to_numpy, (X, *labels))
    tables = {"X": X} | ({"y": y[0]} if y and is_regressor(estimator) else {})
    tables = {argument: check_columns(table, argument) for argument, table in tables.items()}
    try:
        return validate_data(estimator, tables["X"], *y, **{"dtype": np.float64} | options)
    except (TypeError, ValueError):
        for argument, table in tables.items():
            _check_cells(table, argument)
        raise


def check_columns(table: Any, argument: str) -> Any:
    """Refuse what NumPy would take: two columns of one name, and dates, whose numbers would depend on their unit.

    Columns of objects are returned with NaN in place of pandas' NA, which scikit-learn does not know there.
    """
    check_names(table, argument)
    dtypes = table.dtypes if is_frame(table) else [getattr(table, "dtype", None)]
    if any(_is_temporal(dtype) for dtype in dtypes):
        _check_cells(table, argument)
    if is_frame(table) and hasattr(table, "notna"):
        table = table.copy(deep=False)
        for name, dtype in table.dtypes.items():
            if dtype.kind == "O":
                table[name] = table[name].astype(object).where(table[name].notna(), np.nan)
    return table


def check_names(table: Any, argument: str) -> None:
    """Refuse a data frame with two columns of one name."""
    names = [str(name) for name in table.columns] if is_frame(table) else []
    if len(set(names)) < len(names):
        repeated = [name for name, count in Counter(names).items() if count > 1]
        raise InvalidInputError(f"{argument} has several columns of the name {listed(repeated)}: rename them")


def table_of_numbers(table: Any) -> Floats:
    """An array or a data frame in float64. Errors name the columns that hold text or dates."""
    checked = check_columns(table, "X")
    try:
        if hasattr(checked, "isna"):  # pandas, which may hold its NA
            return checked.to_numpy(dtype=np.float64, na_value=np.nan)
        return np.asarray(checked, dtype=np.float64)
    except (TypeError, ValueError):
        _check_cells(checked, "X")
        raise


def _check_cells(table: Any, argument: str) -> None:
    """Raise an error that names the columns in which a cell is no finite number, with the first such cell of each."""
    if odd := _first_cells(table, argument, lambda cell: not is_number(cell)):
        raise NotNumbersError(
            f"{argument}: all cells of this argument must be numbers or strings of numbers, got {listed(odd)}. Leave "
            "such columns out, or encode text as numbers (OneHotEncoder), and turn dates and durations into numbers "
            f"(days since the first one, or seconds){'. Missing cells are NaN' if argument == 'X' else ''}"
        ) from None
    if odd := _first_cells(table, argument, _is_infinite):
        raise infinite_cells(argument, odd) from None


def _first_cells(table: Any, argument: str, is_odd: Callable[[Any], bool]) -> list[str]:
    """The columns with odd cells, and the first such cell of each and its row, counted from 0."""
    return [
        f"{name} ({found[1]!r:.60}) in row {found[0]}"
        for name, column in _named_columns(table, argument)
        if (found := next(((row, cell) for row, cell in enumerate(column) if is_odd(cell)), None)) is not None
    ]


def infinite_cells(argument: str, cells: list[str]) -> InvalidInputError:
    """The error for infinite cells, which are described with their columns and rows."""
    return InvalidInputError(
        f"{argument}: all numbers must be finite, got {listed(cells)}. Replace infinite numbers by finite ones, or "
        f"leave out the rows{'; NaN is a missing cell' if argument == 'X' else ''}"
    )


def _is_infinite(cell: Any) -> bool:
    """Whether a cell is an infinite number in float64."""
    try:
        return math.isinf(float(cell))
    except (OverflowError, TypeError, ValueError) as error:
        return isinstance(error, OverflowError)


def is_frame(table: Any) -> bool:
    """Whether a table is a data frame of pandas or polars."""
    return hasattr(table, "columns") and hasattr(table, "dtypes")


def _is_temporal(dtype: Any) -> bool:
    """Whether a type of NumPy, pandas or polars stands for dates or times."""
    return dtype.is_temporal() if hasattr(dtype, "is_temporal") else getattr(dtype, "kind", "") in ("m", "M")


def _named_columns(table: Any, argument: str) -> Iterator[tuple[str, Any]]:
    """Names and cells of the columns of a table (n, d), or of the one column (n,) that the argument is."""
    if is_frame(table):
        yield from ((str(name), table[name]) for name in table.columns)
        return
    cells = table if _is_temporal(getattr(table, "dtype", None)) else np.asarray(table, dtype=object)
    if cells.ndim == 1:
        yield argument, cells
    elif cells.ndim == 2:
        yield from ((f"feature {i}", column) for i, column in enumerate(cells.T))


def is_number(cell: Any) -> bool:
    """Whether a cell is a number, or a string of one; None is a missing number."""
    if isinstance(cell, Number | None | np.datetime64):
        return not isinstance(cell, np.datetime64 | np.timedelta64)
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def varies(x: Floats) -> np.ndarray:
    """Which columns hold two values or more, to working precision, beside missing ones."""
    lowest, highest = (choose.reduce(x, axis=0) for choose in (np.fmin, np.fmax))  # NaN only where all are
    return highest - lowest > 1e-13 * np.maximum(np.abs(highest), np.abs(lowest))


def is_constant(x: Floats) -> np.ndarray:
    """Which columns hold only one value, to working precision, beside missing ones. A column of NaN alone does not."""
    return ~varies(x) & ~np.isnan(x).all(axis=0)


def warn_of_spikes(x: Floats, names: list[str]) -> None:
    """Warn of columns with few distinct values, and of single values that many rows share.

    Rounded data, in which neighbouring values are about as frequent, are no cause for a warning.
    """
    seen = [f"{name} ({spike})" for name, column in zip(names, x.T, strict=True) if (spike := spike_of(column))]
    if seen:
        warnings.warn(
            f"X: a density makes spikes of values that repeat, here in {listed(seen)}. The log-likelihood then "
            "measures the spikes, and draws repeat the values. Leave such columns out, fit one density for each value "
            "of a discrete column, or leave out the rows with a capped value. Densities take such columns with "
            'atoms="auto" and rounded="auto"',
            SpikeWarning,
            stacklevel=4,
        )


def spike_of(column: Floats) -> str | None:
    """A description of the spike in a column; None if there is none."""
    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    if not len(values):
        return None
    n, size, top = counts.sum(), len(values), int(counts.argmax())
    found = top if size <= FEW_VALUES and n >= REPEATS * size else None
    inner, bound = (INNER_SHARE, INNER_RATIO), (BOUND_SHARE, BOUND_RATIO)
    for i, (share, ratio) in ((top, inner), (0, bound), (size - 1, bound)):
        near = np.concatenate([counts[max(i - NEAR_VALUES, 0) : i], counts[i + 1 : i + 1 + NEAR_VALUES]])
        if found is None and counts[i] >= max(share * n, ratio * near.max(initial=1)):
            found = i
    if found is None:
        return None
    return f"{size} distinct values, {100 * counts[found] / n:.3g} % of the rows are {values[found]:g}"


def distinct_rows(x: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """The distinct rows in increasing order, and the sum of the weights of each.

    So neither the order of rows nor the way in which they are repeated has any influence. Rows of weight 0, and rows of
    which nothing is known, are left out.
    """
    kept = (weights > 0) & ~np.isnan(x).all(axis=1)
    if not kept.any():
        raise InvalidInputError("X and sample_weight: there is no row with numbers and a positive weight")
    x, weights = x[kept], weights[kept]
    absent = np.isnan(x)
    keys = np.hstack([np.nan_to_num(x), absent]) if absent.any() else x
    order = np.lexsort(keys.T[::-1])
    keys = keys[order]
    is_new = np.concatenate([[True], (keys[1:] != keys[:-1]).any(axis=1)])
    return x[order][is_new], np.bincount(np.cumsum(is_new) - 1, weights[order]).astype(np.float64)


def check_labelled(estimator: Any, X: Any, y: Any, sample_weight: Any) -> tuple[Floats, np.ndarray, Floats]:
    """Checked rows of positive weight, which may hold NaN, their labels (two classes or more), and their weights."""
    X, y = check_rows(estimator, X, y, ensure_all_finite="allow-nan", ensure_min_samples=2)
    check_classification_targets(y)
    y = column_or_1d(y, warn=True)
    weights = check_weights(sample_weight, X)
    X, y, weights = (part[weights > 0] for part in (X, y, weights))
    classes = np.unique(y)
    if len(classes) < 2:
        found = f"one class: {classes[0]!s}" if len(classes) else "no row of positive weight"
        raise InvalidInputError(f"y must hold two classes or more, got {found}")
    return X, y, weights


def distinct_labelled(x: Floats, labels: np.ndarray, weights: Floats) -> tuple[Floats, np.ndarray, Floats]:
    """The distinct pairs of a row and a label, by row and then label, and the sum of the weights of each."""
    classes, codes = np.unique(labels, return_inverse=True)
    rows, weights = distinct_rows(np.column_stack([x, codes]), weights)
    return rows[:, :-1], classes[rows[:, -1].astype(np.int64)], weights


def column_moments(x: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Means and standard deviations of columns, NaN left out; 0 and 1 without numbers, and 1 if they do not vary."""
    present = ~np.isnan(x)
    total = weights @ present
    total = np.where(total > 0, total, 1.0)
    mean = weights @ np.where(present, x, 0.0) / total
    distance = np.where(present, x - mean, 0.0)
    largest = np.maximum(np.abs(distance).max(axis=0), 1e-300)
    deviation = largest * np.sqrt(weights @ (distance / largest) ** 2 / total)
    if not np.isfinite(mean).all() or not np.isfinite(deviation).all():
        raise InvalidInputError("X or y: numbers are so large that their sums leave float64: change the unit")
    is_flat = ~(deviation > 1e-12 * np.maximum(np.abs(mean), 1e-300))
    return mean, np.where(is_flat, 1.0, deviation)


def split_rows(n: int, validation_fraction: float | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the rows for training and for validation, a share of the distinct rows."""
    order = np.random.default_rng(seed).permutation(n)
    held_out = 0 if validation_fraction is None else max(1, round(validation_fraction * n))
    if held_out and n - held_out < 2:
        raise InvalidInputError(
            f"validation_fraction={validation_fraction} leaves {n - held_out} of {n} distinct rows to fit: lower it, "
            "or set it to None"
        )
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def split_classes(labels: np.ndarray, validation_fraction: float | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The same share of every class for training and for validation; each class keeps a row for training."""
    if validation_fraction is None:
        return split_rows(len(labels), None, seed)
    order = np.random.default_rng(seed).permutation(len(labels))
    held_out = []
    for label in np.unique(labels):
        members = order[labels[order] == label]
        held_out.append(members[: min(len(members) - 1, round(validation_fraction * len(members)))])
    validation = np.sort(np.concatenate(held_out))
    if not len(validation):
        raise InvalidInputError(
            f"validation_fraction={validation_fraction} of {len(labels)} distinct rows leaves none to validate with, "
            "since each class keeps one: raise it, or set it to None"
        )
    return np.setdiff1d(order, validation), validation
