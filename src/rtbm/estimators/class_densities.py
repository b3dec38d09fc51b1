"""The densities of one class: of every single feature, and of all features together."""

from typing import NamedTuple, Self

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.errors import RTBMError
from rtbm.estimators.checks import is_constant
from rtbm.estimators.density.standardise import standardise, to_standard
from rtbm.estimators.features.transformer import spread_out, typical_variances
from rtbm.estimators.parallel import threads_for, without_warnings
from rtbm.training import SOLVERS, ArraySource, Family, Objective, Prior, make_start
from rtbm.training.columns import ColumnDensities
from rtbm.training.coordinates import local_widths
from rtbm.training.family import FAILURES
from rtbm.training.statistics import Likelihood

JOINT = (1, 3)
"""The numbers of machines of the densities of all features together."""
N_HIDDEN, MAX_ITER, TOL = 1, 10, 1e-3
"""The hidden units of these machines, the most iterations of EM, and the gain of the mean log P at which they end. More
iterations change predictions little."""
AXIS_ITER, AXIS_WORK = (5, 50), 2e7
"""The fewest and the most iterations of the search for independent axes, along which these fits start; in between, rows
times squared features times iterations is AXIS_WORK. With fewer, some starts are worse; with more, tables of many rows
and features take longer."""
OMITTED = -25.0
"""Log of the share of hidden states that are left out. In many dimensions the data are far from every state, and the
bounds of a tolerance would ask for many more."""
LARGEST_DISTANCE = 1e6
"""Standardised rows are cut off here, where the squares are still far from the limits of float64."""


class JointDensity(NamedTuple):
    """A density of all features: that of machines for z with x = mean + root z."""

    vector: Floats  # (n_parameters,)
    mean: Floats  # (d,)
    root: Floats  # (d, d)

    def log_prob(self, x: Floats) -> Floats:
        """log P (n,) of rows (n, d)."""
        z = np.clip(to_standard(x, self.mean, self.root), -LARGEST_DISTANCE, LARGEST_DISTANCE)
        d, size = len(self.mean), len(self.vector)
        family = next(f for k in JOINT if (f := Family(d, N_HIDDEN, n_components=k)).n_parameters == size)
        source = ArraySource(torch.from_numpy(np.ascontiguousarray(z)), torch.ones(len(z), dtype=torch.float64))
        log_prob = Likelihood(family, source, omitted=OMITTED).log_prob(torch.from_numpy(self.vector))
        return log_prob.numpy() - np.linalg.slogdet(self.root)[1]


class ClassDensities(NamedTuple):
    """The densities of one class, fitted to part of the data. Features that are constant there have none."""

    varies: np.ndarray  # (d,): which features are not constant
    single: ColumnDensities | None  # of those features; None without any
    joint: list[JointDensity | None]  # as in JOINT; None for those that could not be fitted

    @classmethod
    def fit(cls, x: Floats, weights: Floats, variances: Floats, varies: np.ndarray, seed: int) -> Self:
        """Fit them to rows (n, d) of a class with weights (n,), and variances (d,) that are typical of classes.

        One more observation is spread around the mean of the class, as `spread_out` has it.
        """
        if not varies.any():
            return cls(varies, None, [None] * len(JOINT))
        x, variances = x[:, varies], variances[varies]
        mean, deviation = weights @ x / weights.sum(), np.sqrt(variances)
        extra = np.full(2, 0.5 * weights.mean())
        single = ColumnDensities.fit(
            np.vstack([x, mean + deviation, mean - deviation]), np.concatenate([weights, extra])
        )
        return cls(varies, single, _fit_joint(*spread_out(x, weights, variances), seed))

    def log_prob(self, x: Floats) -> tuple[Floats, Floats]:
        """log P of each feature (n, d), and of all together (n, len(JOINT)). What has no density counts nothing."""
        single, joint = np.zeros(x.shape), np.zeros((len(x), len(JOINT)))
        with threads_for(len(x)), torch.no_grad():
            if self.single is not None:
                single[:, self.varies] = self.single.log_prob(x[:, self.varies])
            for i, density in enumerate(self.joint):
                if density is not None:
                    joint[:, i] = density.log_prob(x[:, self.varies])
        return single, joint


def class_tasks(x: Floats, codes: np.ndarray, weights: Floats) -> list[tuple[Floats, Floats, Floats, np.ndarray]]:
    """The arguments of `ClassDensities.fit` for each class but the seed."""
    members = [codes == code for code in np.unique(codes)]
    variances, varies = typical_variances(x, weights, members), ~is_constant(x)
    return [(x[member], weights[member], variances, varies) for member in members]


def _fit_joint(x: Floats, weights: Floats, seed: int) -> list[JointDensity | None]:
    """The densities of all features; None if rows lie so close to a plane that float64 has no density."""
    with threads_for(len(x)), without_warnings():
        try:
            names = [str(i) for i in range(x.shape[1])]
            axis_iter = int(np.clip(AXIS_WORK / (len(x) * x.shape[1] ** 2), *AXIS_ITER))
            data = standardise(x, weights, np.zeros(len(x)), names, False, axis_iter=axis_iter)
        except RTBMError:
            return [None] * len(JOINT)
        from sklearn.cluster import KMeans

        z = np.ascontiguousarray(data.z)
        source = ArraySource(torch.from_numpy(z), torch.from_numpy(weights))
        prior = Prior(1.0, local_widths(z, weights))
        found: list[JointDensity | None] = []
        for n_machines in JOINT:
            family = Family(z.shape[1], N_HIDDEN, n_components=n_machines)
            objective = Objective(family, source, prior, omitted=OMITTED)
            clusters = KMeans(min(n_machines, len(z)), n_init=1, random_state=seed % 2**32)
            labels = clusters.fit(z, sample_weight=weights).labels_ if n_machines > 1 else None
            start = make_start(family, z, weights, 0, seed, labels)
            try:
                vector = SOLVERS["em"](max_iter=MAX_ITER, tol=TOL).minimise(objective, start).vector
                found.append(JointDensity(vector.numpy(), data.mean, data.root))
            except FAILURES:
                found.append(None)
    return found
