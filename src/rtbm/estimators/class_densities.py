"""The densities of one class: of every single feature, and of all features together."""

from typing import NamedTuple, Self

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.errors import RTBMError
from rtbm.estimators.checks import is_constant
from rtbm.estimators.density.fallback import without_strays
from rtbm.estimators.density.standardise import Standardised, standardise, to_standard
from rtbm.estimators.density.task import DensityTask
from rtbm.estimators.features.transformer import spread_out, typical_variances
from rtbm.estimators.parallel import threads_for, without_warnings
from rtbm.training import SOLVERS, Family
from rtbm.training.columns import ColumnDensities
from rtbm.training.family import FAILURES

JOINT = (1, 3)
"""The numbers of machines of the densities of all features together."""
N_HIDDEN, MAX_ITER, TOL, AXIS_ITER = 1, 30, 1e-4, 10
"""The hidden units of these machines; the iterations of their fits, their tolerance, and the iterations of the search
for independent axes, along which they start. More take longer, and change predictions little."""
LARGEST_DISTANCE = 1e6
"""Standardised rows are cut off here, where the squares are still far from the limits of float64."""


class JointDensity(NamedTuple):
    """A density of all features: that of machines for z with x = mean + root z."""

    vector: Floats  # (n_parameters,)
    mean: Floats  # (d,)
    root: Floats  # (d, d)

    def log_prob(self, x: Floats) -> Floats:
        """log P (n,) of rows (n, d), right to 1e-7 on average."""
        z = np.clip(to_standard(x, self.mean, self.root), -LARGEST_DISTANCE, LARGEST_DISTANCE)
        d, size = len(self.mean), len(self.vector)
        family = next(f for k in JOINT if (f := Family(d, N_HIDDEN, n_components=k)).n_parameters == size)
        vector, points = torch.from_numpy(self.vector), torch.from_numpy(np.ascontiguousarray(z))
        try:
            log_prob = family.log_prob(vector, points)
        except FAILURES:
            log_prob = family.distribution(vector).log_prob(points)
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
    with without_warnings():
        try:
            names = [str(i) for i in range(x.shape[1])]
            data = standardise(x, weights, np.zeros(len(x)), names, False, axis_iter=AXIS_ITER)
        except RTBMError:
            return [None] * len(JOINT)
        return [_fit_machines(data, n_machines, seed) for n_machines in JOINT]


def _fit_machines(data: Standardised, n_machines: int, seed: int) -> JointDensity | None:
    task = DensityTask(
        n_hidden=N_HIDDEN,
        n_components=n_machines,
        coupling="dense",
        phase="I",
        data=data,
        validation=None,
        regularization=1.0,
        smoothness=0.0,
        solver=SOLVERS["lbfgs"](max_iter=MAX_ITER, tol=TOL, seed=seed),
        n_init=1,
        patience=1,
        n_jobs=None,
        device=None,
    )
    try:
        vector = without_strays(task, task.run(0, None, MAX_ITER, None).vector)
        density = JointDensity(vector.numpy(), data.mean, data.root)
        density.log_prob(data.mean[None])
    except FAILURES:
        return None
    return density
