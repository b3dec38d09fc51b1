"""rtbm: probability densities of tables by Riemann-Theta Boltzmann machines.

Start with `RTBMDensityCV().fit(X)`. Estimators follow the conventions of scikit-learn:

- `RTBMDensityCV`: a density whose size cross-validation chooses. `RTBMDensity`: one of a given size.
  Both have `score_samples`, `sample`, `marginal`, `conditional`, `cdf`, `quantile`, `impute` and `predict_quantiles`.
- `RTBMRegressor`, `RTBMImputer`, `RTBMOutlierDetector`, `RTBMClassifier`: tasks that a density solves.
- `RTBMForecaster`: forecasts of series as distributions and paths.
- `RTBMFeatures`, `make_patch_classifier`: expectations of hidden units as features, and the paper's classifier.
- `ThetaNetRegressor`, `ThetaNetClassifier`: networks whose activations are expectations of hidden units.
- `save`, `load`: models in files. `explore`: a page to play with.

In torch:

- `RTBMDistribution`, `RTBMMixture`, `MappedDistribution`, `ConditionalDistribution`: densities as torch distributions.
- `nn`: `nn.RTBM` and `nn.MixtureOfRTBMs` to train by hand, `nn.ThetaLayer` for any network, `nn.RTBMHead` for densities
  whose parameters a network puts out.
- `DiscreteGaussian`: the hidden units. `ContinuousBoltzmannMachine`: the machine with real hidden units.

Theta functions: `log_theta`, `theta_moments`, `riemann_theta`, `riemann_theta_characteristics`, `theta_constants`,
`jacobi_theta`, `siegel_reduce`, `is_siegel_reduced`, `ThetaPlan`.

Modules: `rtbm.datasets` (the paper's densities and series), `rtbm.parameters` (natural, lattice and free ones),
`rtbm.plotting` (pictures), `rtbm.errors`, all of which are `RTBMError`.

Examples
--------
>>> import rtbm
>>> X = rtbm.datasets.gamma.sample(200)
>>> rtbm.RTBMDensity(n_hidden=1, n_init=1, random_state=0).fit(X).sample(2, random_state=0).shape
(2, 1)
"""

# The public names are the imports in `__init__.pyi`, which type checkers read too. A name is imported when it is first
# used, so that `import rtbm` and `rtbm --help` do not wait for torch.

import ast
import importlib
from pathlib import Path
from typing import Any

_IMPORTS = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
_MODULES = {alias.name: node.module for node in _IMPORTS if isinstance(node, ast.ImportFrom) for alias in node.names}
"""The module from which each public name is imported; `rtbm` itself for the public modules."""

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'rtbm' has no attribute {name!r}")
    if _MODULES[name] == "rtbm":
        return importlib.import_module(f"rtbm.{name}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
