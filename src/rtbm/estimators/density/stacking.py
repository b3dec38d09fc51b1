"""Candidates compared and weighed by log P of rows that they have not seen."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax

from rtbm.common import Floats

SAME = 1e-6
"""Candidates whose log P differs by at most this are the same density, and count once."""
STACKING_ITERATIONS = 2000
"""EM iterations for the weights of candidates; they end earlier if the weights stand still."""


class HeldOut(NamedTuple):
    """log P of n rows by m candidates that have not seen them."""

    joint: Floats  # (n, m): of all columns
    given: Floats  # (n, m): of the columns that are not targets; 0 without targets

    def of(self, candidates: list[int]) -> "HeldOut":
        """Those of some candidates."""
        return HeldOut(self.joint[:, candidates], self.given[:, candidates])

    @property
    def log_prob(self) -> Floats:
        """What candidates are judged by: log P of all columns, or of the targets given the others."""
        return self.joint - self.given

    def mixed(self, shares: Floats) -> "HeldOut":
        """That of the mixture of the candidates, as one candidate."""
        parts = (logsumexp(part, axis=1, b=shares, keepdims=True) for part in self)
        return HeldOut(*parts)

    def shares(self, weights: Floats, costs: Floats) -> Floats:
        """The shares (m,) of candidates; see `stacking_weights` and `conditional_weights`."""
        if not self.given.any():
            return stacking_weights(self.joint, weights, costs)
        return conditional_weights(self.joint, self.given, weights, costs)


def stacking_weights(log_prob: Floats, weights: Floats, costs: Floats, tol: float = 1e-7) -> Floats:
    """The shares s (m,) of candidates that maximise the log-likelihood of their mixture less their costs, by EM.

    The costs are Σ_j s_j costs_j. The M-step is s_j = c_j/(μ + costs_j), with c_j the number of rows that candidate j
    explains, and μ such that the shares have sum 1.

    Parameters
    ----------
    log_prob : (n, m)
        log P of each row by each candidate, fitted without it.
    weights : (n,)
        How often each row counts.
    costs : (m,)
        What candidates cost if they have the whole share.
    tol : float, default=1e-7
        Iterations end when no share changes by more.

    Examples
    --------
    >>> log_prob = np.log([[0.9, 0.1], [0.2, 0.9]])
    >>> stacking_weights(log_prob, np.ones(2), np.zeros(2)).round(2)
    array([0.58, 0.42])
    >>> stacking_weights(log_prob, np.ones(2), np.array([0.0, 2.0])).round(2)
    array([0.94, 0.06])
    """
    costs = costs - costs.min()
    total = float(weights.sum())
    ratios = np.exp(log_prob - log_prob.max(axis=1, keepdims=True))
    shares = np.full(log_prob.shape[1], 1 / log_prob.shape[1])
    for _ in range(STACKING_ITERATIONS):
        before = shares
        counts = shares * ((weights / (ratios @ shares)) @ ratios)
        shares = _with_costs(counts, costs, total)
        if np.abs(shares - before).max() < tol:
            break
    return shares


def conditional_weights(joint: Floats, given: Floats, weights: Floats, costs: Floats) -> Floats:
    """The shares s (m,) that maximise the likelihood of targets given the other columns, less the costs of candidates.

    It is Σ_i w_i log(Σ_j s_j exp(joint_ij)/Σ_j s_j exp(given_ij)) − Σ_j s_j costs_j, by L-BFGS from equal shares.

    Parameters
    ----------
    joint, given : (n, m)
        log P of all columns, and of those that are not targets, by each candidate, fitted without the row.
    weights, costs : (n,), (m,)
        As for `stacking_weights`.

    Examples
    --------
    >>> joint = np.log([[0.9, 0.1], [0.2, 0.9]])
    >>> conditional_weights(joint, np.zeros((2, 2)), np.ones(2), np.zeros(2)).round(2)
    array([0.58, 0.42])
    """
    joint, given = (part - part.max(axis=1, keepdims=True) for part in (joint, given))

    def loss(logits: Floats) -> tuple[float, Floats]:
        parts = [log_prob + log_softmax(logits) for log_prob in (joint, given)]
        totals = [logsumexp(part, axis=1) for part in parts]
        shares = softmax(logits)
        explained = [weights @ np.exp(part - total[:, None]) for part, total in zip(parts, totals, strict=True)]
        slope = shares * (costs - shares @ costs) - explained[0] + explained[1]
        return float(shares @ costs - weights @ (totals[0] - totals[1])), slope

    return softmax(minimize(loss, np.zeros(len(costs)), jac=True, method="L-BFGS-B", bounds=[(-30, 30)] * len(costs)).x)


def _with_costs(counts: Floats, costs: Floats, total: float) -> Floats:
    """counts/(μ + costs) with sum 1, for costs from 0 on, by Newton's method for a convex function of μ."""
    μ = max(total - costs.max(), 1e-9 * total)
    for _ in range(50):
        shares = counts / (μ + costs)
        step = (shares.sum() - 1) / (shares / (μ + costs)).sum()
        μ += step
        if step <= 1e-12 * total:
            break
    shares = counts / (μ + costs)
    return shares / shares.sum()


def near_best(log_prob: Floats, weights: Floats, threshold: float) -> list[int]:
    """The candidates whose mean log P is within `threshold` standard errors, of the paired difference, of the best.

    Parameters
    ----------
    log_prob, weights : (n, m), (n,)
        As for `stacking_weights`.
    threshold : float
        Standard errors; with 0 the best alone is near.

    Examples
    --------
    >>> near_best(np.array([[1.0, 0.0, 1.1], [1.0, 0.1, 0.8]]), np.ones(2), 1.0)
    [0, 2]
    """
    total = weights.sum()
    best = int((weights @ log_prob).argmax())
    behind = log_prob[:, [best]] - log_prob
    mean = weights @ behind / total
    error = np.sqrt(weights @ (behind - mean) ** 2) / total
    return [j for j in range(log_prob.shape[1]) if j == best or mean[j] < threshold * error[j]]


def distinct(log_prob: Floats) -> list[int]:
    """The candidates that differ from all before them. Several may have been replaced by the same Gaussians.

    Examples
    --------
    >>> distinct(np.array([[1.0, 1.0, 2.0], [3.0, 3.0, 3.0]]))
    [0, 2]
    """
    columns = list(log_prob.T)
    return [i for i, mine in enumerate(columns) if not any(np.allclose(mine, other, 0, SAME) for other in columns[:i])]
