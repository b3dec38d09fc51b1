"""What a fitted density predicts: quantiles, missing values, some features from others, and the machine of a row."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.distributions import CategoryColumn, MixedDistribution, RTBMMixture
from rtbm.distributions.missing import missing_patterns
from rtbm.errors import InvalidInputError
from rtbm.estimators.density.categories import find_known
from rtbm.estimators.density.fitted import FittedDensity, in_blocks, is_list
from rtbm.estimators.density.frames import keep_known
from rtbm.estimators.parallel import threads_for
from rtbm.estimators.progress import counting_bar
from rtbm.training.objective import machine_log_prob
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

    def cell_probability(self, X: Any, target: Any = None) -> Floats:
        """The probability (n_samples,) of the cells of rounded columns, together with that of categories and atoms.

        Other numbers are integrated out, as gaps are. The first and the last cell are open, and values beyond those of
        the training data lie in them, but for atoms. With up to two rounded columns it is as accurate as `cdf`, with
        more to 1e-4.

        With a target it is the probability of the target's cell, level or atom alone, given the other columns. This is
        as accurate as `cdf`.

        Parameters
        ----------
        X : (n_samples, n_features)
            Rows.
        target : int or str, default=None
            The number or name of a column that is rounded, or has categories or atoms.

        Examples
        --------
        >>> from rtbm import RTBMDensity
        >>> dice = np.random.default_rng(0).integers(1, 7, (600, 1))
        >>> model = RTBMDensity(2, n_init=1, random_state=0).fit(dice)
        >>> p = model.cell_probability(np.arange(1.0, 7.0)[:, None])
        >>> bool(abs(p - 1 / 6).max() < 0.05), round(float(p.sum()), 9)
        (True, 1.0)
        """
        rows = self._check(X)
        low, high = self._cells(rows)
        device = self._line_density.device
        with torch.no_grad():
            if target is None:
                density = self._line_density
                if not isinstance(density, MixedDistribution):
                    density = MixedDistribution.of_numbers(density, self._maps)
                return self._without_outer_atoms(density, low, high)
            i = self._index(target)
            if not np.isfinite([low[:, i], high[:, i]]).any(axis=0).all():
                raise InvalidInputError(
                    f"target must be known in each row, and rounded, or on a level or an atom, got {target!r}"
                )
            given = self._given(X, target)
            if self._kinds.levels[i] is not None:
                levels = torch.from_numpy(rows[:, [i]]).long().to(device)
                return given.category(0).probs.gather(1, levels)[:, 0].cpu().numpy()

            def mass(low: Floats, high: Floats) -> Floats:
                ends = (torch.from_numpy(end).to(device) for end in (np.nextafter(low, -np.inf), high))
                below, above = map(given.cdf, ends)
                return (above - below).cpu().numpy()

            total = mass(low[:, [i]], high[:, [i]])
            for atom in self._outer_atoms()[i]:
                there = np.full((len(rows), 1), atom)
                total -= np.where((low[:, i] < atom) & (atom < high[:, i]), mass(there, there), 0.0)
            return total

    def _cells(self, rows: Floats) -> tuple[Floats, Floats]:
        """The ends (n, d) of the cells of rows: levels and atoms themselves, and infinite for other numbers."""
        low, high = np.full_like(rows, -np.inf), np.full_like(rows, np.inf)
        kinds = self._kinds
        for i, column in enumerate(rows.T):
            known = ~np.isnan(column)
            cells = kinds.cells[i]
            if cells is not None:
                low[known, i], high[known, i] = cells.ends(column[known])
            alone = self._outer_atoms()[i] if cells is not None else kinds.atoms[i]
            known &= np.full(len(column), kinds.levels[i] is not None) | np.isin(column, alone)
            low[known, i] = high[known, i] = column[known]
        return low, high

    def _outer_atoms(self) -> list[list[float]]:
        """The atoms of each column that lie in open cells, and do not belong to them."""
        pairs = zip(self._kinds.cells, self._kinds.atoms, strict=True)
        return [[] if cells is None else cells.outer(atoms) for cells, atoms in pairs]

    def _without_outer_atoms(self, density: MixedDistribution, low: Floats, high: Floats) -> Floats:
        """The probability (n,) of boxes of cells: that of all in them, less that of the outer atoms of open cells."""
        total, is_open = np.zeros(len(low)), np.isfinite(low) != np.isfinite(high)
        for chosen in itertools.product(*([None, *atoms] for atoms in self._outer_atoms())):
            corners, counted, sign = (low.copy(), high.copy()), np.ones(len(low), dtype=bool), 1
            for i, atom in enumerate(chosen):
                if atom is not None:
                    counted &= is_open[:, i] & (low[:, i] < atom) & (atom < high[:, i])
                    corners[0][:, i] = corners[1][:, i] = atom
                    sign = -sign
            if counted.any():
                ends = (torch.from_numpy(end[counted]).to(density.device) for end in corners)
                total[counted] += sign * density.box_probability(*ends).cpu().numpy()
        return total

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
        if any(self._kinds.levels[i] is not None for i in targets):
            raise InvalidInputError(
                f"target must be columns of numbers, got {target!r}: predict_proba is for categories"
            )
        places = [sorted(set(targets)).index(i) for i in targets] if is_list(target) else 0

        def moments(rows: Floats) -> Floats:
            given = self._condition_rows(rows, known)
            mean = given.mean[:, places]
            parts = [mean, given.variance[:, places].clamp(min=0).sqrt()] if return_std else [mean]
            return torch.stack(parts, -1).cpu().numpy()

        rows, known = self._known(X, target)
        with torch.no_grad():
            found = in_blocks(moments, rows)
        return (found[..., 0], found[..., 1]) if return_std else found[..., 0]

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
        levels = np.asarray(quantiles, dtype=np.float64)

        def block(rows: Floats) -> Floats:
            return self._condition_rows(rows, known).icdf(levels)[..., 0].mT.cpu().numpy()

        rows, known = self._known(X, target)
        with torch.no_grad():
            return in_blocks(block, rows)

    def _given(self, X: Any, target: Any) -> Any:
        """The distributions of some features given the others, one for each row."""
        return self._condition_rows(*self._known(X, target))

    def _known(self, X: Any, target: Any) -> tuple[Floats, list[int]]:
        """Checked rows, and the places of the features that are no targets."""
        targets, rows = self._indices(target), self._check(self._with_all_columns(X))
        known = [i for i in range(rows.shape[1]) if i not in targets]
        if not targets or not known:
            raise InvalidInputError(f"target must name some features, but not all of {self._names()}, got {target!r}")
        return rows, known

    def _condition_first(self, X: Floats) -> Any:
        """The distributions of the last columns given the first ones, X (n_samples, n_known)."""
        width = X.shape[1]
        rows = np.column_stack([X, np.full((len(X), self.n_features_in_ - width), np.nan)])
        known = [i for i, column in enumerate(self._kept.tolist()) if column < width]
        return self._condition_rows(rows[:, self._kept], known)

    def impute(self, X: Any, method: str = "mean", random_state: Any = None) -> Any:
        """X (n_samples, n_features) with missing entries filled in.

        Parameters
        ----------
        X : (n_samples, n_features)
            Rows with NaN entries.
        method : "mean" or "sample", default="mean"
            The mean of missing numbers and the likeliest level of missing categories given the other entries, or a draw
            from their joint conditional distribution. Draws have the decimals of the training data. A row without
            entries gets the mean of the density, or a draw from it.
        random_state : int, Generator, RandomState or None, default=None
            For repeatable draws. None follows `random_state` of the estimator.

        Returns
        -------
        A data frame if X is one, with its index and, as far as the values allow, its dtypes; else an array. Known
        cells are as they were. `set_output` may ask for either.

        Examples
        --------
        >>> from rtbm import RTBMDensity, datasets
        >>> model = RTBMDensity(1, random_state=0).fit(datasets.correlated_gaussian.sample(500))
        >>> model.impute([[2.0, np.nan], [0.0, 1.0]]).shape
        (2, 2)
        """
        return self._impute(X, method, 1, random_state)[0]

    def _impute(self, X: Any, method: str, n_tables: int, random_state: Any) -> list[Any]:
        """Several completed tables. Rows with the same gaps, in all of them, are filled in at once."""
        check_choice(method, "method", IMPUTATIONS)
        rows = self._check_all(X)
        known, generator = find_known(X, rows, self.categories_), self._generator(random_state)
        with threads_for(len(rows)):  # patterns of gaps are many, and their rows few
            completed = in_blocks(lambda block: self._complete(block, method, generator), np.tile(rows, (n_tables, 1)))
        tables = [self._framed(table, X) for table in np.split(completed, n_tables)]
        return [keep_known(table, X, known, self.categories_) for table in tables]

    def _complete(self, everything: Floats, method: str, generator: torch.Generator) -> Floats:
        """Rows of all features with gaps filled in."""
        rows = everything[:, self._kept]
        filled = torch.from_numpy(rows.copy()).to(self._line_density.device)
        patterns = missing_patterns(filled)
        with (
            torch.no_grad(),
            counting_bar(len(patterns), "patterns of gaps", len(patterns) > 1 and bool(self.verbose)) as advance,
        ):
            for index, present, _ in patterns:
                advance()
                known = present.tolist()
                missing = [i for i in range(filled.shape[1]) if i not in known]
                if not missing:
                    continue
                given = self._condition_rows(rows[index.cpu().numpy()], known) if known else self.distribution_
                shape = () if known else (len(index),)
                values = _centre(given) if method == "mean" else given.sample(shape, generator)
                filled[index[:, None], torch.tensor(missing)] = values.double()
        answers = filled.cpu().numpy()
        answers = self._all_features(self._rounded(answers) if method == "sample" else answers)
        return np.where(np.isnan(everything), self._whole_days(answers), everything)

    def predict_proba(self, X: Any, target: Any = None) -> Floats:
        """P(machine|x) (n_samples, n_machines): the responsibilities of the machines of a mixture.

        With a target, a column of categories, it is the probability of each of its levels (n_samples, n_levels) given
        the other columns; X as for `predict_mean`. NaN entries are integrated out. A single machine has probability 1.
        """
        if target is not None:
            if self._kinds.levels[self._index(target)] is None:
                raise InvalidInputError(f"target must be a column of categories, got {target!r}")
            with torch.no_grad():
                return self._given(X, target).category(0).probs.cpu().numpy()
        self._refuse_categories("predict_proba without a target")
        return in_blocks(self._responsibilities, self._check(X))

    def _responsibilities(self, rows: Floats) -> Floats:
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
