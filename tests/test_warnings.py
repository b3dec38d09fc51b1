"""Warnings of this library and its tests are errors; deprecations in other packages and notices of plugins are not."""

import types
import warnings

import pytest


def warn_in(module: str, category: type[Warning]) -> None:
    """Warn as if from a module of that name."""
    code = "import warnings\nwarnings.warn('old', category)"
    exec(code, {**types.ModuleType(module).__dict__, "category": category})


@pytest.mark.parametrize("category", [DeprecationWarning, PendingDeprecationWarning, FutureWarning])
def test_deprecations_inside_other_packages_do_not_fail_tests(category):
    warn_in("torch.jit._script", category)
    for ours in ("rtbm.theta.plan", "test_cuda"):
        with pytest.raises(category):
            warn_in(ours, category)


def test_advice_of_torch_does_not_fail_tests_and_all_else_does():
    warn_in("torch._inductor.compile_fx", UserWarning)
    for module in ("torch.nn", "scipy.optimize", "rtbm.nn"):
        with pytest.raises(RuntimeWarning):
            warn_in(module, RuntimeWarning)
    with pytest.raises(UserWarning):
        warnings.warn("ours", stacklevel=1)


def test_notices_of_plugins_do_not_fail_tests():
    warn_in("pytest_benchmark.logger", pytest.PytestWarning)
    warn_in("some_plugin", pytest.PytestWarning)
    for module in ("pytest_cov.plugin", "anyio.pytest_plugin", "xdist.plugin", "coverage.control"):
        warn_in(module, UserWarning)
    with pytest.raises(pytest.PytestWarning):
        warn_in("_pytest.unraisableexception", pytest.PytestWarning)
    with pytest.raises(UserWarning):
        warn_in("rtbm.nn", UserWarning)
