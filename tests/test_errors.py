"""Bad input gets an error of our own classes that names the argument and says what to do."""

import pickle

import numpy as np
import pytest
import torch

from rtbm import (
    InvalidInputError,
    NormalizerError,
    NotPositiveDefiniteError,
    RTBMError,
    ThetaPlan,
    TooManyTermsError,
    log_theta,
    riemann_theta,
    theta_moments,
)

GOOD = np.array([[2.0, 0.5], [0.5, 1.0]])


@pytest.mark.parametrize(
    ("z", "Q", "options", "message"),
    [
        ([0.0, 0.0], [[2.0, 0.5], [0.4, 1.0]], {}, "Q must be symmetric"),
        ([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]], {}, "Q must be positive definite.*-1"),
        ([0.0, 0.0], [[1.0, 1.0], [1.0, 1.0]], {}, "Q must be positive definite"),
        ([0.0, 0.0], [[np.nan, 0.0], [0.0, 1.0]], {}, "Q must be finite.*1 NaN"),
        ([np.inf, 0.0], GOOD, {}, "z must be finite"),
        ([0.0, 0.0, 0.0], GOOD, {}, r"z must have shape \(\.\.\., 2\).*\(3,\)"),
        (0.0, GOOD, {}, "z must have shape"),
        ([0.0, 0.0], [[1.0, 0.0]], {}, r"Q must be one square matrix.*\(1, 2\)"),
        ([0.0, 0.0], np.ones((3, 2, 2)), {}, "Q must be one square matrix"),
        ([], np.zeros((0, 2)), {}, "Q must be one square matrix"),
        ([1j, 0.0], GOOD, {}, "z must be real.*riemann_theta"),
        ([0.0, 0.0], GOOD * 1j, {}, "Q must be real"),
        ("zz", GOOD, {}, "z must be a tensor"),
        ([0.0, 0.0], GOOD, {"phase": "III"}, "phase must be one of 'I', 'II'"),
        ([0.0, 0.0], GOOD, {"tolerance": 0.0}, "tolerance must be between"),
        ([0.0, 0.0], GOOD, {"tolerance": 0.5}, "tolerance must be between"),
        ([0.0, 0.0], GOOD, {"tolerance": float("nan")}, "tolerance must be between"),
        ([0.0, 0.0], GOOD, {"tolerance": "1e-8"}, "tolerance must be between.*'1e-8'"),
        ([0.0, 0.0], GOOD, {"phase": np.array(["I", "II"])}, "phase must be one of"),
        ([0.0, 0.0, 0.0], [[1.0]], {}, r"add a last dimension, z\[\.\.\., None\]"),
        ([0.0, 0.0], [1.0, -2.0], {}, "Q must be positive definite.*got -2 to 1"),
        ([0.0, 0.0], [1.0, 1e-315], {}, "its diagonal must hold numbers between"),
        ([0.0, 0.0], torch.eye(2).to_sparse(), {}, "Q must be a dense tensor"),
        ([1e100, 0.0], GOOD, {}, "z is too large"),
        ([1e17, 0.0], GOOD, {"phase": "II"}, "z is too large"),
        ([0.0, 0.0], [[1e-20, 0.9], [0.9, 1e20]], {}, "too unbalanced"),
    ],
)
def test_log_theta(z: object, Q: object, options: dict[str, object], message: str) -> None:
    for function in (log_theta, theta_moments):
        with pytest.raises(InvalidInputError, match=message) as caught:
            function(z, Q, **options)
        assert isinstance(caught.value, RTBMError)
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("order", [4, 2.0])
def test_theta_moments_order(order: float) -> None:
    with pytest.raises(InvalidInputError, match=f"order must be one of 0, 1, 2, 3, got {order}"):
        theta_moments([0.0, 0.0], GOOD, order=order)


def test_the_limit_on_z_is_where_lattice_points_blur() -> None:
    assert log_theta([1e14, -3e13], [1e-3, 1e3], phase="II").isfinite()
    with pytest.raises(InvalidInputError, match="z is too large"):
        log_theta([1e14, -3e13], [1e-3, 1e3])


def test_a_plan_notices_that_its_matrix_was_changed() -> None:
    Q = torch.tensor(GOOD)
    plan = ThetaPlan(Q)
    Q.data *= 2
    with pytest.raises(InvalidInputError, match="make a new ThetaPlan"):
        plan.log_theta([0.0, 0.0])


def test_not_positive_definite_has_its_own_class() -> None:
    with pytest.raises(NotPositiveDefiniteError):
        ThetaPlan(-GOOD)
    with pytest.raises(NotPositiveDefiniteError, match="imaginary part of omega"):
        riemann_theta([0.0, 0.0], GOOD)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"omega": [[1j, 0.2], [0.1, 1j]]}, "omega must be symmetric"),
        ({"z": [0.0]}, r"z must have shape \(\.\.\., 2\)"),
        ({"z": [np.nan, 0]}, "z must be finite"),
        ({"derivatives": [[1.0]]}, r"derivatives\[0\] must be one vector of shape \(2,\)"),
        ({"characteristic": ([0.5], [0.0, 0.0])}, "alpha must be one vector"),
        ({"characteristic": ([0.5, 0.5],)}, "characteristic must be a pair"),
        ({"characteristic": ([0.5j, 0.5], [0, 0])}, "alpha must be real"),
        ({"characteristic": 0.5}, "characteristic must be a pair"),
        ({"derivatives": 2}, "derivatives must be a sequence"),
        ({"tolerance": -1}, "tolerance must be between"),
    ],
)
def test_riemann_theta(arguments: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"z": [0.0, 0.0], "omega": 1j * GOOD}
    with pytest.raises(InvalidInputError, match=message):
        riemann_theta(**(good | arguments))


def test_importing_changes_no_global_state() -> None:
    assert torch.get_default_dtype() == torch.float32


def test_errors_survive_other_processes():
    errors = [TooManyTermsError(1e9, 10), NormalizerError(1e9, 10, 4, 30, "diagonal"), InvalidInputError("z is wrong")]
    for error in errors:
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert vars(copy) == vars(error)
