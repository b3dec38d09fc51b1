"""The default candidates of a committee, and how long they take."""

from collections.abc import Mapping, Sequence
from typing import Any

from rtbm.parameters import count
from rtbm.training.family import MAX_UNITS

ONE_FEATURE: tuple[dict[str, Any], ...] = (
    {"n_hidden": 3},
    {"n_hidden": 2, "n_components": 2},
    {"n_hidden": 1, "n_components": 4},
    {"n_hidden": 2, "n_components": 2, "regularization": 0.2},
    {"n_hidden": 2, "n_components": 4, "regularization": 0.1},
    {"n_hidden": 2, "n_components": 4, "regularization": 0.01},
    {"n_hidden": 2, "n_components": 4, "regularization": 0.01, "fallback": "gaussians"},
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
PREDICTIONS: tuple[dict[str, Any], ...] = (
    {"n_hidden": 1, "n_components": 32, "regularization": 0.1, "fallback": None, "max_iter": 60},
)
"""The default candidates for one feature and for several, from smooth and simple to sharp and rich, and those that join
them for three features or more, for twenty or more, and, with three or more, for targets."""
EFFORT: dict[str, Any] = {"n_init": 1, "tol": 1e-6}
"""Starts and tolerance of candidates. Averages over folds do not gain from the last digits of a fit."""
FEW_ROWS = 1000
"""With fewer rows of one or two features, default candidates are not compared with Gaussians. With more, the comparison
saves the last hundredths of a nat where data are Gaussian."""
MOST_PARAMETERS = 2.0
"""Candidates for targets have fewer parameters than this for each row."""
TRAINING_SHARE = 0.8
"""The share of rows in the training data of a fold, for the comparison of rows and parameters."""
PASSES, PASS_SECONDS, PRODUCT_SECONDS = 70, 1e-4, 8e-10
"""For the expected time: passes over the data in a fit, and the seconds of a pass for each machine, and for each
product of two columns of a row."""


def default_candidates(n_rows: int, n_features: int, has_targets: bool = False) -> list[dict[str, Any]]:
    """The candidates for a table of this size, some columns of which may be targets.

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
    chosen += PREDICTIONS if n_features > 2 and has_targets else ()
    has_few_rows = n_features <= 2 and n_rows < FEW_ROWS
    candidates: list[dict[str, Any]] = []
    for candidate in chosen:
        n_machines = candidate.get("n_components", 1)
        n_parameters = n_machines * (count(n_features, candidate["n_hidden"]) + 1)
        if candidate in PREDICTIONS and n_parameters >= MOST_PARAMETERS * n_rows:
            continue
        is_too_rich = n_machines > 1 and n_parameters > TRAINING_SHARE * n_rows
        made = {**EFFORT, **candidate, **({"fallback": None} if has_few_rows or is_too_rich else {})}
        candidates += [made] if made not in candidates else []
    return candidates


def expected_seconds(candidates: Sequence[Mapping[str, Any]], n_rows: int, n_features: int, n_folds: int = 5) -> float:
    """The approximate time, on one core, in which candidates are fitted without each fold.

    Examples
    --------
    >>> tried = default_candidates(2000, 50)
    >>> bool(expected_seconds(tried, 2000, 50) > 10 * expected_seconds(tried, 2000, 5))
    True
    """
    total = 0.0
    for candidate in candidates:
        n_machines = candidate.get("n_components", 1)
        n_states = 2 ** (min(candidate.get("n_hidden", 2), MAX_UNITS) - 1)
        products = n_machines * n_rows * (n_features + 2) ** 2 * n_states
        starts = candidate.get("n_init", 8)
        total += starts * PASSES * (PASS_SECONDS * (1 + n_machines) + PRODUCT_SECONDS * products)
    return n_folds * total
