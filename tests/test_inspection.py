"""Looking at an estimator never fails: fitted or not, whichever it is."""

import copy

import numpy as np
import pytest
from sklearn.base import clone

import rtbm

ESTIMATORS = {
    "machine": lambda: rtbm.RTBMDensity(1, n_init=1, random_state=0),
    "mixture": lambda: rtbm.RTBMDensity(1, n_components=2, n_init=1, fallback=None, random_state=0),
    "diagonal": lambda: rtbm.RTBMDensity(2, coupling="diagonal", n_init=1, fallback=None, random_state=0),
    "committee": lambda: rtbm.RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], cv=2, random_state=0),
    "features": lambda: rtbm.RTBMFeatures(n_hidden=1, random_state=0),
    "classifier": lambda: rtbm.RTBMClassifier(cv=2, random_state=0),
    "regressor": lambda: rtbm.RTBMRegressor(rtbm.RTBMDensity(1, n_init=1, random_state=0)),
    "outlier detector": lambda: rtbm.RTBMOutlierDetector(rtbm.RTBMDensity(1, n_init=1, random_state=0)),
    "theta regressor": lambda: rtbm.ThetaNetRegressor((2,), n_init=1, solver="lbfgs", random_state=0),
    "theta classifier": lambda: rtbm.ThetaNetClassifier((2,), n_init=1, solver="lbfgs", random_state=0),
}


@pytest.mark.filterwarnings("ignore::rtbm.SpikeWarning")  # the labels are a target of regression, too
@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_looking_at_an_estimator_never_raises(name, fitted):
    model = ESTIMATORS[name]()
    if fitted:
        X = np.random.default_rng(0).normal(size=(30, 2))
        model.fit(X, (X[:, 0] > 0).astype(int))
    assert type(model).__name__ in repr(model)
    assert "<" in model._repr_html_()
    assert "fit" in dir(model)
    copied, cloned = copy.deepcopy(model), clone(model)
    assert vars(copied).keys() == vars(model).keys()
    assert repr(cloned) == repr(model)
    for attribute in dir(type(model)):
        hasattr(model, attribute)
