"""Bad parameters and arguments of machines get errors that name them and say what to do."""

from collections.abc import Callable

import numpy as np
import pytest

from rtbm import InvalidInputError, RTBMDistribution, RTBMMixture

GOOD = {"T": [[1.0]], "W": [[0.5]], "Q": [[2.0]], "b_v": [0.0], "b_h": [0.0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"T": [[-1.0]]}, r"T must be positive definite, but its smallest eigenvalue is -1"),
        ({"T": [[1.0, 0.0], [0.5, 1.0]]}, r"T must be symmetric"),
        ({"T": [1.0]}, r"T must be one square matrix"),
        ({"Q": [[0.0]]}, r"Q must be positive definite"),
        ({"Q": [-1.0]}, r"Q as a vector .* entries must be positive, got \[-1\.0\]"),
        ({"W": [[2.0]]}, r"Q − WᵀT⁻¹W .* must be positive definite, but its smallest eigenvalue is -2"),
        ({"W": [[2.0]], "Q": [2.0]}, r"T − WQ⁻¹Wᵀ .* must be positive definite"),
        ({"W": [0.5]}, r"W must have shape \(1, 1\), got \(1,\)"),
        ({"W": [[0.5], [0.5]]}, r"W must have shape \(1, 1\), got \(2, 1\)"),
        ({"b_v": [0.0, 0.0]}, r"b_v must be one vector of shape \(1,\), got shape \(2,\)"),
        ({"b_h": 0.0}, r"b_h must be one vector of shape \(1,\), got shape \(\)"),
        ({"b_h": [float("nan")]}, r"b_h must be finite"),
        ({"W": [[1j]]}, r"W must be real"),
        ({"W": "weights"}, r"W must be a tensor or an array of numbers, got a str"),
        ({"phase": "III"}, r"phase must be one of 'I', 'II', got 'III'"),
        ({"tolerance": 1.0}, r"tolerance must be between"),
    ],
)
def test_machines_name_the_argument(change: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        RTBMDistribution(**{**GOOD, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"A": [[-1.0]]}, "A must be positive definite"),
        ({"covariance": [[0.0]]}, "covariance must be positive definite"),
        ({"F": [[1.0, 2.0]]}, r"F must have shape \(1, 1\), got \(1, 2\)"),
        ({"a": [1.0, 2.0]}, r"a must be one vector of shape \(1,\)"),
        ({"mean": [float("inf")]}, "mean must be finite"),
        ({"phase": 1}, "phase must be one of 'I', 'II', got 1"),
    ],
)
def test_lattice_forms_name_the_argument(change: dict, message: str) -> None:
    good = {"A": [[1.0]], "a": [0.0], "F": [[1.0]], "mean": [0.0], "covariance": [[1.0]]}
    with pytest.raises(InvalidInputError, match=message):
        RTBMDistribution.from_lattice(**{**good, **change})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.log_prob([float("inf")]), "value must not hold infinite entries; a missing entry is NaN"),
        (lambda m: m.log_prob([[0.0, 1.0]]), r"value must have shape \(\.\.\., 1\), got \(1, 2\)"),
        (lambda m: m.log_prob(0.5), r"value must have shape .* add a last dimension"),
        (lambda m: m.score_function([float("nan")]), "value must be finite"),
        (lambda m: m.hidden_mean([float("nan")]), "value must be finite"),
        (lambda m: m.icdf([1.5]), "value must hold probabilities between 0 and 1"),
        (lambda m: m.affine([[1.0, 0.0], [0.0, 1.0]]).icdf([0.5, 0.5]), r"M must have shape \(n, 1\)"),
        (lambda m: m.box_probability([float("nan")], [0.0]), "low must not hold NaN"),
        (lambda m: m.box_probability([[0.0]] * 2, [[0.0]] * 3), "low and high must have leading shapes that broadcast"),
        (lambda m: m.hidden_log_prob([[0.5]]), "h must hold integers"),
        (lambda m: m.visible_given([[0.5]]), "h must hold integers"),
        (lambda m: m.energy([[0.0]] * 2, [[0.0]] * 3), "v and h must have leading shapes that broadcast"),
        (lambda m: m.hidden_log_prob([[0.0]] * 2, [[0.0]] * 3), "h and v must have leading shapes that broadcast"),
        (lambda m: m.cumulant(0), "order must be an integer of at least 1, got 0"),
        (lambda m: m.kl("normal"), "other must be one distribution over vectors of length 1, got 'normal'"),
        (lambda m: m.estimate_entropy(1), "n_samples must be an integer of at least 2, got 1"),
        (lambda m: m.to_phase("one"), "phase must be one of 'I', 'II', got 'one'"),
        (lambda m: RTBMMixture([0.5, 0.6], [m, m]), r"weights must be probabilities with sum 1, got sum 1\.1"),
        (lambda m: RTBMMixture([1.0], [m, m]), r"weights must be one vector of shape \(2,\)"),
        (lambda m: RTBMMixture([], []), "components must be a non-empty sequence"),
        (lambda m: RTBMMixture([1.0], ["m"]), "components must be a non-empty sequence of RTBMDistribution"),
        (
            lambda m: RTBMMixture([0.5, 0.5], [m, RTBMDistribution(np.eye(2), np.zeros((2, 1)), [[1.0]], [0, 0], [0])]),
            r"components must have the same number of visible units, got \[1, 2\]",
        ),
    ],
)
def test_methods_name_the_argument(call: Callable[[RTBMDistribution], object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call(RTBMDistribution(**GOOD))


def test_quantiles_need_one_dimension() -> None:
    machine = RTBMDistribution(np.eye(2), np.zeros((2, 1)), [[1.0]], [0.0, 0.0], [0.0])
    with pytest.raises(
        InvalidInputError, match=r"icdf needs one visible unit, this distribution has 2: take a marginal"
    ):
        machine.icdf([0.5, 0.5])
