"""The classifier of the paper's section 5: features of machines on patches, and a classifier on them."""

from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from rtbm.estimators.features.transformer import RTBMFeatures


def make_patch_classifier(n_hidden: int = 2, *, classifier: Any = None, **options: Any) -> Pipeline:
    """A pipeline of `RTBMFeatures`, a scaler and a classifier: the paper's classifier (section 5).

    Parameters
    ----------
    n_hidden : int, default=2
        The number of hidden units of the machine on each patch.
    classifier : scikit-learn classifier, default=None
        What sees the standardised features; None for logistic regression.
    **options
        Further arguments of `RTBMFeatures`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from rtbm import make_patch_classifier
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(make_patch_classifier(4, random_state=0).fit(X, y).score(X, y) > 0.95)
    True
    """
    if classifier is None:
        from sklearn.linear_model import LogisticRegression  # half a second, which only classifiers need

        classifier = LogisticRegression(max_iter=1000)
    steps = [("features", RTBMFeatures(n_hidden, **options)), ("scaler", StandardScaler()), ("classifier", classifier)]
    return Pipeline(steps)
