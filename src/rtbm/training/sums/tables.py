"""How long tables of hidden states are, and when they are too long: then theta functions serve instead."""

import math

import numpy as np

from rtbm.common import Floats
from rtbm.errors import TooManyTermsError
from rtbm.theta.kernels import compiled
from rtbm.theta.real import theta_moments
from rtbm.training.sums import dense
from rtbm.training.sums.blocks import Blocks
from rtbm.training.sums.dense import Machines, States
from rtbm.training.sums.mixed import MixedPass
from rtbm.training.sums.passes import Evaluation, TablePass
from rtbm.training.sums.states import tabulate

TABLE_TOLERANCE = 1e-7
"""The error of the mean log P from omitted hidden states. A smaller one makes tables longer, and steps slower."""
TABLE_STATES, TABLE_STATES_WIDE = 2**16, 2**11
"""The most states of a machine in a table; beyond, theta functions are faster. TABLE_STATES is for up to two features,
where a block of points skips most states, and TABLE_STATES_WIDE for more."""
FIRST_ROOM = 64
"""The states of a machine that fit into the first tables. They get more room by factors of 4."""
MARGIN, SURPLUS = 3.0, 6.0
"""Tables aim at exp(−MARGIN) of the tolerance, and are shortened when they are beyond exp(−SURPLUS) of it. Larger
values make longer tables that change less often."""
NEGLIGIBLE = -37.0
"""Log of an omitted share of probability that is below the rounding of float64."""
LEAST_OMITTED, FIRST_OMITTED, MOST_OMITTED = -60.0, math.log(1e-9), math.log(1e-3)
"""Log of the omitted share of probability: lower limit, initial target, upper limit. Points that need longer tables are
summed over states of their own."""


class Tables:
    """Tables of hidden states that follow machines during a fit, as long as the data need them.

    Parameters
    ----------
    sizes : tuple of int
        The numbers of machines, and of visible and hidden units.
    tolerance : float, default=TABLE_TOLERANCE
        A bound on the error of the mean log P.
    max_states : int, default=None
        The most states of a machine; None for TABLE_STATES or TABLE_STATES_WIDE.
    omitted : float, default=None
        The log of the share of probability that tables omit whatever the data need; None for what `tolerance` asks.
    """

    def __init__(
        self,
        sizes: tuple[int, int, int],
        tolerance: float = TABLE_TOLERANCE,
        max_states: int | None = None,
        omitted: float | None = None,
    ):
        self._sizes, self._tolerance = sizes, tolerance
        self._is_fixed, self._first = omitted is not None, FIRST_OMITTED if omitted is None else omitted
        self._allowed = np.full(sizes[0], self._first)
        self._log_scales = np.zeros(1 + sizes[0])
        self._room, self._limit = FIRST_ROOM, max_states or (TABLE_STATES if sizes[1] <= 2 else TABLE_STATES_WIDE)
        self._is_limited = False

    def evaluate(
        self, vector: Floats, source: Blocks, wants_sums: bool = True, log_tables: Floats | None = None
    ) -> Evaluation:
        """One pass over data whose weights have sum 1, or more until the tables are long enough.

        `log_tables` (S, K) are those of discrete columns, see `MixedPass`. A TooManyTermsError says that theta
        functions are faster, or that the parameters leave float64.
        """
        machines = dense.unpack_machines(vector, *self._sizes)
        for _ in range(4):
            function = self._pass(machines, wants_sums)
            full = function if log_tables is None else MixedPass(machines.log_weights, log_tables, function)
            parts = np.split(source.add(full), [function.size])
            sums = function.unpack(parts[0])
            if not math.isfinite(sums.log_prob[0]):
                break
            states = function.states
            if self._is_fixed or function.far_tolerance or _adjust(
                machines.log_weights, states.log_left_out, sums.errors, self._log_scales, self._allowed,
                math.log(self._tolerance),
            ):  # fmt: skip
                counts = None if log_tables is None else parts[1].reshape(-1, len(machines.F))
                return Evaluation(machines, states, sums, counts)
            self._is_limited = bool((self._allowed <= LEAST_OMITTED).any())
        raise TooManyTermsError(math.inf, self._limit)

    def latest(self, vector: Floats) -> TablePass:
        """The pass with the tables of the last evaluation, without sums for derivatives."""
        return self._pass(dense.unpack_machines(vector, *self._sizes), False)

    def _pass(self, machines: Machines, wants_sums: bool) -> TablePass:
        """The pass with tables that omit what is allowed, or else with the longest possible ones.

        Once tables are shorter than they should be they stay so, since few points are too far out for them.
        """
        while True:
            try:
                states = self._tabulate(machines)
            except TooManyTermsError:
                if self._is_fixed or (self._allowed >= MOST_OMITTED).all():
                    self._allowed, self._is_limited = np.full(len(self._allowed), self._first), False
                    raise
                self._allowed, self._is_limited = np.minimum(self._allowed + 3.0, MOST_OMITTED), True
            else:
                if not self._is_limited:
                    return TablePass(machines, states, self._log_scales, wants_sums)
                return TablePass(machines, _normalised(states, machines), self._log_scales, wants_sums, self._tolerance)

    def _tabulate(self, machines: Machines) -> States:
        """The tables of machines, in as much room as they take."""
        while True:
            states = tabulate(machines, self._allowed, self._room)
            if len(states.delta):
                return states
            if self._room == self._limit:
                self._room = min(FIRST_ROOM, self._limit)
                raise TooManyTermsError(math.inf, self._limit)
            self._room = min(4 * self._room, self._limit)


def _normalised(states: States, machines: Machines) -> States:
    """Short tables with P(h) and its moments as if no state were left out, by theta functions.

    With the fraction f of the centre, Σ exp(−½δᵀAδ) = exp(−½fᵀAf) θ̃(Af|A) over all δ = n − f.
    """
    log_prior, log_left_out = states.log_prior.copy(), states.log_left_out.copy()
    mean, second = states.mean.copy(), states.second.copy()
    for k in np.flatnonzero(states.log_left_out > NEGLIGIBLE):
        L_A, centre = machines.L_A[k], machines.centre[k]
        A, f = L_A @ L_A.T, centre - np.rint(centre)
        moments = theta_moments(A @ f, A, order=2)
        assert moments.mean is not None
        assert moments.covariance is not None
        log_total = float(moments.log_theta) - 0.5 * f @ A @ f
        begin, end = states.first[k], states.first[k + 1]
        listed = -0.5 * np.square(states.delta[begin] @ L_A).sum() - states.log_prior[begin]
        log_prior[begin:end] += listed - log_total
        log_left_out[k] += listed - log_total
        mean[k] = moments.mean.numpy() - f
        second[k] = moments.covariance.numpy() + np.outer(mean[k], mean[k])
    return states._replace(log_prior=log_prior, log_left_out=log_left_out, mean=mean, second=second)


@compiled
def _adjust(log_weights, log_left_out, errors, log_scales, allowed, log_tolerance):
    """Whether tables were long enough; updates log_scales (1 + K,), and what the next tables may omit (K,).

    `errors` (1 + K,) are Σ w/P, and the same times the highest peak of each machine, divided by exp(log_scales). With
    what a table omits, the latter bound the error of the mean log P.
    """
    n_machines = len(allowed)
    for k in range(n_machines + 1):
        log_scales[k] = min(max(log_scales[k] + math.log(max(errors[k], 1e-300)), -1e4), 1e4)
    accurate = True
    for k in range(n_machines):
        missing = log_weights[k] + log_left_out[k] + log_scales[k + 1]
        slack = log_tolerance - math.log(n_machines) - missing
        accurate = accurate and slack >= 0
        if slack < 0 or slack > SURPLUS:
            allowed[k] = min(max(allowed[k] + slack - MARGIN, LEAST_OMITTED), MOST_OMITTED)
    return accurate
