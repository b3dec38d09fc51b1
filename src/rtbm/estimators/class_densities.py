"""The densities of one class: of every single feature, and of all features together."""

import math
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.errors import RTBMError
from rtbm.estimators.checks import varies
from rtbm.estimators.density.standardise import log_scales, standardise, start_on, to_standard
from rtbm.estimators.features.transformer import class_moments, spread_out
from rtbm.estimators.parallel import threads_for, without_warnings
from rtbm.training import FAILURES, SOLVERS, ArrayBlocks, Family, Likelihood, Objective, Prior
from rtbm.training.columns import ColumnDensities
from rtbm.training.coordinates import local_widths

JOINT = (1, 3)
"""The numbers of machines of the densities of all features together."""
N_HIDDEN, MAX_ITER, TOL = 1, 10, 1e-3
"""The hidden units of these machines, the most iterations of EM, and the gain of the mean log P at which they end. More
iterations change predictions little."""
AXIS_ITER, AXIS_WORK = (5, 50), 2e7
"""The fewest and the most iterations of the search for independent axes, along which these fits start; in between, rows
times squared features times iterations is AXIS_WORK. With fewer, some starts are worse; with more, tables of many rows
and features take longer."""
GAP_WORK = 1e8
"""With missing entries, the densities of all features are fitted to a sample of a class, whose rows times cubed
features are at most this, since each row has its own integral. More take longer: minutes, for 50 features."""
LARGEST_DISTANCE = 1e6
"""Standardised rows are cut off here, where the squares are still far from the limits of float64."""


class JointDensity(NamedTuple):
    """A density of all features: that of machines for z with x = mean + root z."""

    vector: Annotated[Floats, "n_parameters"]
    mean: Annotated[Floats, "d"]
    root: Annotated[Floats, "d d"]

    def log_prob(self, x: Floats) -> Floats:
        """log P (n,) of rows (n, d). NaN entries are integrated out."""
        d, size = len(self.mean), len(self.vector)
        family = next(f for k in JOINT if (f := Family(d, N_HIDDEN, n_components=k)).n_parameters == size)
        vector, root = torch.from_numpy(self.vector), self.root
        if np.isnan(x).any():  # the coordinates of missing entries must not mix with others
            machines, logits = family.split(vector)
            scales = np.linalg.norm(root, axis=1)
            turned = [family.single().affine(machine, root / scales[:, None], np.zeros(d)) for machine in machines]
            vector, root = family.join(turned, logits), np.diag(scales)
        z = np.clip(to_standard(x, self.mean, root), -LARGEST_DISTANCE, LARGEST_DISTANCE)
        source = ArrayBlocks(torch.from_numpy(np.ascontiguousarray(z)), torch.ones(len(z), dtype=torch.float64))
        log_prob = Likelihood(family, source).log_prob(vector)
        return log_prob.numpy() - log_scales(x, root)


class ClassDensities(NamedTuple):
    """The densities of one class, fitted to part of the data. Features that are constant there have none."""

    varies: Annotated[np.ndarray, "d"]  # which features are not constant
    single: ColumnDensities | None  # of those features; None without any
    joint: list[JointDensity | None]  # as in JOINT; None for those that could not be fitted

    @classmethod
    def fit(cls, x: Floats, weights: Floats, moments: tuple[Floats, Floats], varies: np.ndarray, seed: int) -> Self:
        """Fit them to rows (n, d) of a class with weights (n,), its mean (d,), and variances (d,) typical of classes.

        One more observation is spread around the mean of the class, as `spread_out` has it.
        """
        if not varies.any():
            return cls(varies, None, [None] * len(JOINT))
        x, (mean, variances) = x[:, varies], (part[varies] for part in moments)
        deviation = np.sqrt(variances)
        extra = np.full(2, 0.5 * weights.mean())
        single = ColumnDensities.fit(
            np.vstack([x, mean + deviation, mean - deviation]), np.concatenate([weights, extra])
        )
        step = math.ceil(len(x) * x.shape[1] ** 3 / GAP_WORK) if np.isnan(x).any() else 1
        x, weights = x[::step], weights[::step]  # rows are sorted, so every k-th row makes a good sample
        return cls(varies, single, _fit_joint(*spread_out(x, weights, mean, variances), seed))

    def log_prob(self, x: Floats) -> tuple[Floats, Floats]:
        """log P of each feature (n, d), and of all together (n, len(JOINT)). What has no density counts nothing.

        Missing entries count nothing either.
        """
        single, joint = np.zeros(x.shape), np.zeros((len(x), len(JOINT)))
        with threads_for(len(x)), torch.no_grad():
            if self.single is not None:
                single[:, self.varies] = self.single.log_prob(x[:, self.varies])
            for i, density in enumerate(self.joint):
                if density is not None:
                    joint[:, i] = density.log_prob(x[:, self.varies])
        return single, joint


def class_tasks(x: Floats, codes: np.ndarray, weights: Floats) -> list[tuple[Any, ...]]:
    """The arguments of `ClassDensities.fit` for each class but the seed."""
    members = [codes == code for code in np.unique(codes)]
    moments, is_used = class_moments(x, weights, members), varies(x)
    return [(x[member], weights[member], own, is_used) for member, own in zip(members, moments, strict=True)]


def _fit_joint(x: Floats, weights: Floats, seed: int) -> list[JointDensity | None]:
    """The densities of all features; None if rows lie so close to a plane that float64 has no density."""
    known = ~np.isnan(x).all(axis=1)
    x, weights = x[known], weights[known]
    with threads_for(len(x)), without_warnings(), np.errstate(all="ignore"):  # steps may leave float64
        try:
            names = [str(i) for i in range(x.shape[1])]
            axis_iter = int(np.clip(AXIS_WORK / (len(x) * x.shape[1] ** 2), *AXIS_ITER))
            has_missing = bool(np.isnan(x).any())
            data = standardise(x, weights, np.zeros(len(x)), names, has_missing, axis_iter=axis_iter)
        except RTBMError:
            return [None] * len(JOINT)
        from sklearn.cluster import KMeans

        z = np.ascontiguousarray(data.z)
        source = ArrayBlocks(torch.from_numpy(z), torch.from_numpy(weights))
        prior = Prior(1.0, local_widths(z, weights))
        found: list[JointDensity | None] = []
        for n_machines in JOINT:
            family = Family(z.shape[1], N_HIDDEN, n_components=n_machines)
            objective = Objective(family, source, prior)
            clusters = KMeans(min(n_machines, len(z)), n_init=1, random_state=seed % 2**32)
            labels = clusters.fit(data.complete, sample_weight=weights).labels_ if n_machines > 1 else None
            start = start_on(data, family, 0, seed, labels)
            try:
                vector = SOLVERS["em"](max_iter=MAX_ITER, tol=TOL).minimise(objective, start).vector
                found.append(JointDensity(vector.numpy(), data.mean, data.root))
            except FAILURES:
                found.append(None)
    return found
