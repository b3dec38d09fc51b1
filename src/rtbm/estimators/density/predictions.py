"""What a fitted density predicts: quantiles, missing values, some features from others, and the machine of a row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.distributions import CategoryColumn, MixedDistribution, RTBMMixture
from rtbm.distributions.missing import missing_patterns
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import is_frame
from rtbm.estimators.density.fitted import FittedDensity, is_list
from rtbm.training.likelihood import machine_log_prob
from rtbm.validation import check_choice

IMPUTATIONS = ("mean", "sample")


def _centre(given: Any) -> torch.Tensor:
    """The means of columns of numbers, and the likeliest levels of columns of categories."""
    values = given.mean.double()
    for i, column in enumerate(given.columns if isinstance(given, MixedDistribution) else []):
        if isinstance(column, CategoryColumn):
            values[..., i] = given.category(i).probs.argmax(-1).double()
    return values


class PredictingDensity(FittedDensity):
    """A fitted density with predictions for many rows at once."""

    def pdf(self, X: Any) -> Floats:
        """The density P(x) (n_samples,) of each row: exp of `score_samples`."""
        return np.exp(self.score_samples(X))

    def quantile(self, p: Any) -> Floats:
        """The quantiles (...) of probabilities p (...), for a density of one feature.

        Examples
        --------
        >>> from rtbm import RTBMDensity, datasets
        >>> X = datasets.gamma.sample(2000)
        >>> model = RTBMDensity(2, random_state=0).fit(X)
        >>> bool(abs(model.quantile(0.5) - np.median(X)) < 0.1)
        True
        """
        with torch.no_grad():
            return self.distribution_.icdf(np.asarray(p, dtype=np.float64))[..., 0].cpu().numpy()

    def predict_mean(self, X: Any, target: Any, return_std: bool = False) -> Any:
        """E[target|other features] (n_samples,), and the standard deviation (n_samples,) if `return_std`.

        Parameters
        ----------
        X : (n_samples, n_features)
            Rows. The column of the target is not read; a data frame may lack it. NaN entries are unknown.
        target : int, str, or list of these
            The number or name of the feature to predict. Several are predicted from the features that are left, and the
            results then have the shape (n_samples, n_targets).
        return_std : bool, default=False
            Whether to return the standard deviation too.

        Examples
        --------
        >>> from rtbm import RTBMDensity, datasets
        >>> model = RTBMDensity(1, random_state=0).fit(datasets.correlated_gaussian.sample(500))
        >>> bool(abs(float(model.predict_mean([[2.0, np.nan]], 1)[0]) - 1.6) < 0.1)
        True
        """
        targets = self._indices(target)
        if set(targets) & set(self._sizes):
            raise InvalidInputError(
                f"target must be columns of numbers, got {target!r}: predict_proba is for categories"
            )
        places = [sorted(set(targets)).index(i) for i in targets] if is_list(target) else 0
        with torch.no_grad():
            given = self._given(X, target)
            mean = given.mean[:, places].cpu().numpy()
            return (mean, given.variance[:, places].clamp(min=0).sqrt().cpu().numpy()) if return_std else mean

    def predict_quantiles(self, X: Any, target: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Floats:
        """Quantiles (n_samples, n_quantiles) of one target given the other features; X as for `predict_mean`.

        Examples
        --------
        >>> from rtbm import RTBMDensity, datasets
        >>> model = RTBMDensity(1, random_state=0).fit(datasets.correlated_gaussian.sample(500))
        >>> model.predict_quantiles([[2.0, np.nan], [0.0, np.nan]], 1).shape
        (2, 3)
        """
        if is_list(target):
            raise InvalidInputError(f"target must be one feature, got {target!r}: ask for the quantiles of each apart")
        with torch.no_grad():
            return self._given(X, target).icdf(np.asarray(quantiles, dtype=np.float64))[..., 0].mT.cpu().numpy()

    def _given(self, X: Any, target: Any) -> Any:
        """The distributions of some features given the others, one for each row."""
        targets, rows = self._indices(target), self._check(self._with_all_columns(X))
        known = [i for i in range(rows.shape[1]) if i not in targets]
        if not targets or not known:
            raise InvalidInputError(f"target must name some features, but not all of {self._names()}, got {target!r}")
        return self._condition_rows(rows, known)

    def _condition_first(self, X: Floats) -> Any:
        """The distributions of the last columns given the first ones, X (n_samples, n_known)."""
        width = X.shape[1]
        rows = np.column_stack([X, np.full((len(X), self.n_features_in_ - width), np.nan)])
        known = [i for i, column in enumerate(self._kept.tolist()) if column < width]
        return self._condition_rows(rows[:, self._kept], known)

    def _with_all_columns(self, X: Any) -> Any:
        """X, with columns of NaN for features that a data frame lacks."""
        names = getattr(self, "feature_names_in_", None)
        if names is None or not is_frame(X) or not set(X.columns) < set(names):
            return X
        if hasattr(X, "reindex"):
            return X.reindex(columns=list(names))
        return X.with_columns(**dict.fromkeys(set(names) - set(X.columns), np.nan)).select(list(names))  # polars

    def impute(self, X: Any, method: str = "mean", random_state: Any = None) -> Any:
        """X (n_samples, n_features) with missing entries filled in.

        Parameters
        ----------
        X : (n_samples, n_features)
            Rows with NaN entries.
        method : "mean" or "sample", default="mean"
            The mean of the missing entries given the others, or a draw from their joint conditional distribution. A row
            without numbers gets the mean of the density, or a draw from it.
        random_state : int, RandomState or None, default=None
            For repeatable draws. None follows `random_state` of the estimator.

        Returns
        -------
        An array; or, if `set_output` asks for it, a data frame, with the index of X if that is one of pandas.

        Examples
        --------
        >>> from rtbm import RTBMDensity, datasets
        >>> model = RTBMDensity(1, random_state=0).fit(datasets.correlated_gaussian.sample(500))
        >>> model.impute([[2.0, np.nan], [0.0, 1.0]]).shape
        (2, 2)
        """
        check_choice(method, "method", IMPUTATIONS)
        everything = self._check_all(X)
        rows = everything[:, self._kept]
        generator = self._generator(random_state)
        filled = torch.from_numpy(rows.copy()).to(self._line_density.device)
        with torch.no_grad():
            for index, present, _ in missing_patterns(filled):
                known = present.tolist()
                missing = [i for i in range(filled.shape[1]) if i not in known]
                if not missing:
                    continue
                given = self._condition_rows(rows[index.cpu().numpy()], known) if known else self.distribution_
                shape = () if known else (len(index),)
                values = _centre(given) if method == "mean" else given.sample(shape, generator)
                filled[index[:, None], torch.tensor(missing)] = values.double()
        answers = self._all_features(filled.cpu().numpy())
        return self._framed(np.where(np.isnan(everything), answers, everything), X)

    def predict_proba(self, X: Any, target: Any = None) -> Floats:
        """P(machine|x) (n_samples, n_machines): the responsibilities of the machines of a mixture.

        With a target, a column of categories, it is the probability of each of its levels (n_samples, n_levels) given
        the other columns; X as for `predict_mean`. NaN entries are integrated out. A single machine has probability 1.
        """
        if target is not None:
            if self._index(target) not in self._sizes:
                raise InvalidInputError(f"target must be a column of categories, got {target!r}")
            with torch.no_grad():
                return self._given(X, target).category(0).probs.cpu().numpy()
        self._refuse_categories("predict_proba without a target")
        rows = self._check(X)
        line = self._to_line(rows)[0]
        points = torch.from_numpy(line).to(self._line_density.device)
        if not isinstance(self._line_density, RTBMMixture):
            return np.ones((len(line), 1))
        with torch.no_grad():
            if self._has_scattered_gaps(points):
                terms = machine_log_prob(self._line_density, points)
            else:
                terms = torch.stack([component.log_prob(points) for component in self._line_density.components], 1)
            return (terms + self._line_density.logits).softmax(1).cpu().numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The number (n_samples,) of the likeliest machine of the mixture."""
        return self.predict_proba(X).argmax(axis=1)
