"""Warnings of this library and of its tests are errors; deprecations inside other packages are not."""

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
