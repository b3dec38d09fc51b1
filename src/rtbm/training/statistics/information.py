"""What expectation maximisation knows about the parameters of dense machines, from the sums of one pass.

The M-step for P(h), and the coordinates in which the information that EM expects is the identity.
"""

import math

import numpy as np

from rtbm.theta.kernels import compiled
from rtbm.training.statistics.dense import invert_triangle


@compiled
def _hidden_statistics(delta, statistics):
    """Fill rows (−½δ_i², −δ_iδ_j for i > j row by row, −δ_i): what (A, b) multiply in −½δᵀAδ − bᵀδ."""
    g = delta.shape[1]
    for s in range(len(delta)):
        at = 0
        for i in range(g):
            for j in range(i + 1):
                statistics[s, at] = -delta[s, i] * delta[s, j] * (0.5 if i == j else 1.0)
                at += 1
        for i in range(g):
            statistics[s, at + i] = -delta[s, i]


@compiled
def _hidden_moments(statistics, natural):
    """log Σ exp(statistics · natural) over states, and mean and covariance of the statistics."""
    n = statistics.shape[1]
    logits = statistics @ natural
    top = logits.max()
    weights = np.exp(logits - top)
    total = weights.sum()
    weights /= total
    mean = weights @ statistics
    covariance = np.zeros((n, n))
    for s in range(len(weights)):
        for i in range(n):
            for j in range(i + 1):
                covariance[i, j] += weights[s] * (statistics[s, i] - mean[i]) * (statistics[s, j] - mean[j])
    for i in range(n):
        for j in range(i):
            covariance[j, i] = covariance[i, j]
    return top + math.log(total), mean, covariance


@compiled
def _matrix_of(natural, g):
    """The matrix A in a vector (A row by row, b)."""
    A, at = np.empty((g, g)), 0
    for i in range(g):
        for j in range(i + 1):
            A[i, j] = A[j, i] = natural[at]
            at += 1
    return A


@compiled
def _rigidity_derivatives(A, rigidity, stiffness, gradient, hessian):
    """Add the derivatives of −rigidity (tr A − stiffness log det A): gradient, and the negative second ones."""
    g, inverse = len(A), np.linalg.inv(A)
    a = 0
    for i in range(g):
        for j in range(i + 1):
            gradient[a] += rigidity * (stiffness * inverse[i, j] * (1.0 if i == j else 2.0) - (1.0 if i == j else 0.0))
            b = 0
            for k in range(g):
                for m in range(k + 1):  # tr(A⁻¹ D_ij A⁻¹ D_km), D with ones at (i, j) and (j, i)
                    value = inverse[j, k] * inverse[m, i]
                    if k != m:
                        value += inverse[j, m] * inverse[k, i]
                    if i != j:
                        value += inverse[i, k] * inverse[m, j]
                        if k != m:
                            value += inverse[i, m] * inverse[k, j]
                    hessian[a, b] += rigidity * stiffness * value
                    b += 1
            a += 1


@compiled
def fit_hidden(L_A, centre, delta, sums, total, rigidity, stiffness, n_steps):
    """Improve A and the centre for P(h) given sums Σ 1, Σ δ, Σ δδᵀ over the data, by damped Newton steps, in place.

    With P(h) ∝ exp(−½δᵀAδ − bᵀδ), the log-likelihood is concave in (A, b), and so is the prior on A. `total` is the
    number of observations that a sum of 1 stands for.
    """
    g = len(centre)
    n_scale = g * (g + 1) // 2
    n = n_scale + g
    statistics, observed, natural = np.empty((len(delta), n)), np.empty(n), np.zeros(n)
    _hidden_statistics(delta, statistics)
    old, at = L_A @ L_A.T, 0
    for i in range(g):
        for j in range(i + 1):
            observed[at] = -sums[1 + g + i * g + j] * (0.5 if i == j else 1.0)
            natural[at] = old[i, j]
            at += 1
    observed[n_scale:] = -sums[1 : 1 + g]
    log_sum, mean, covariance = _hidden_moments(statistics, natural)
    present = -np.inf
    for _ in range(n_steps):
        A = _matrix_of(natural, g)
        if present == -np.inf:
            log_det = 2 * np.log(np.diag(L_A)).sum()
            present = total * (observed @ natural - sums[0] * log_sum) - rigidity * (np.trace(A) - stiffness * log_det)
        gradient, hessian = total * (observed - sums[0] * mean), total * sums[0] * covariance
        _rigidity_derivatives(A, rigidity, stiffness, gradient, hessian)
        damping = 1e-9 * np.diag(hessian).max() + 1e-12
        for i in range(n):
            hessian[i, i] += damping
        step, size, improved = np.linalg.solve(hessian, gradient), 1.0, False
        while (
            size > 1e-3 and not improved
        ):  # the first of 1, ½, … that improves, and changes A no more than tables allow
            candidate = natural + size * step
            matrix = _matrix_of(candidate, g)
            if np.linalg.eigvalsh(matrix - 0.5 * A)[0] > 0:
                log_det = np.log(np.linalg.eigvalsh(matrix)).sum()
                log_sum, new_mean, new_covariance = _hidden_moments(statistics, candidate)
                value = total * (observed @ candidate - sums[0] * log_sum)
                value -= rigidity * (np.trace(matrix) - stiffness * log_det)
                if value >= present:
                    natural, present, mean, covariance, improved = candidate, value, new_mean, new_covariance, True
            size *= 0.5
        if not improved:
            break
    A = _matrix_of(natural, g)
    centre -= np.linalg.solve(A, natural[n_scale:])
    L_A[:] = np.linalg.cholesky(A)


@compiled
def _hidden_information(L_A, delta, log_prior, total, rigidity, stiffness):
    """The expected information (q, q) about the free parameters of P(h), for `total` observations, with the prior."""
    g = len(L_A)
    n_scale = g * (g + 1) // 2
    n = n_scale + g
    A, statistics, natural = L_A @ L_A.T, np.empty((len(delta), n)), np.zeros(n)
    jacobian, spare = np.zeros((n, n)), np.zeros(n)
    _hidden_statistics(delta, statistics)
    column = 0
    for i in range(g):
        for j in range(i + 1):
            natural[column] = A[i, j]
            scale, row = L_A[i, i] if i == j else 1.0, 0
            for a in range(g):  # dA = dL Lᵀ + L dLᵀ for dL = scale at (i, j)
                for b in range(a + 1):
                    if a == i:
                        jacobian[row, column] += scale * L_A[b, j]
                    if b == i:
                        jacobian[row, column] += scale * L_A[a, j]
                    row += 1
            column += 1
    jacobian[n_scale:, n_scale:] = -A
    _, _, covariance = _hidden_moments(statistics, natural)
    information = total * covariance
    _rigidity_derivatives(A, rigidity, stiffness, spare, information)
    return jacobian.T @ information @ jacobian


@compiled
def _inverse_root(matrix):
    """X with X matrix Xᵀ = 1, for a positive definite matrix, slightly damped."""
    n = len(matrix)
    damped, inverse = matrix.copy(), np.zeros((n, n))
    floor = 1e-10 * np.diag(matrix).max() + 1e-300
    for i in range(n):
        damped[i, i] += floor
    invert_triangle(np.linalg.cholesky(damped), inverse)
    return inverse


@compiled
def find_scaling(residuals, gram, log_weights, L_A, delta, log_prior, first, total, rigidity, stiffness):
    """What makes the expected information of expectation maximisation the identity; see `apply_scaling`.

    Returns roots of the inverse information about P(h) (K, q, q) and about F and the origin (K, g + 1, g + 1).
    """
    n_machines, g = len(first) - 1, L_A.shape[1]
    n = g * (g + 1) // 2 + g
    hidden, visible = np.empty((n_machines, n, n)), np.empty((n_machines, g + 1, g + 1))
    for k in range(n_machines):
        share = max(residuals[k, 0], 1 / total)
        own = slice(first[k], first[k + 1])
        information = _hidden_information(L_A[k], delta[own], log_prior[own], share, rigidity / total, stiffness)
        hidden[k] = _inverse_root(information)
        visible[k] = _inverse_root(gram[k] + 1e-3 / total * np.eye(g + 1))
    return hidden, visible


@compiled
def apply_scaling(u, hidden, visible, shares, centre, L, vector):
    """Add to `vector` the change that scaled coordinates u stand for.

    With L, centre those where the scaling was found, a machine of share r changes by::

        d(hidden parameters) = hiddenᵀ u₁,   d(F, origin) = L U₂ visible,   dL = L U₃/√r  (√2 less on the diagonal)
    """
    n_machines, d = L.shape[:2]
    g, q = centre.shape[1], hidden.shape[1]
    size = q + d * g + d + d * (d + 1) // 2
    change = np.empty((d, g + 1))
    triangle = np.zeros((d, d))
    for k in range(n_machines):
        at = k * size
        for i in range(q):
            for j in range(i, q):
                vector[at + i] += hidden[k, j, i] * u[at + j]
        at += q
        for i in range(d):
            for j in range(g + 1):
                change[i, j] = 0.0
                for m in range(j, g + 1):
                    change[i, j] += u[at + i * (g + 1) + m] * visible[k, m, j]
        for i in range(d - 1, -1, -1):
            for j in range(g + 1):
                value = 0.0
                for m in range(i + 1):
                    value += L[k, i, m] * change[m, j]
                change[i, j] = value
        for i in range(d):
            for j in range(g):
                vector[at + i * g + j] += change[i, j]
                change[i, g] -= change[i, j] * centre[k, j]
        at += d * g
        for i in range(d):
            vector[at + i] += change[i, g]
        at += d
        start = at
        for i in range(d):
            for j in range(i + 1):
                triangle[i, j] = u[at] / math.sqrt(shares[k] * (2.0 if i == j else 1.0))
                at += 1
        at = start
        for i in range(d):
            for j in range(i + 1):
                value = 0.0
                for m in range(j, i + 1):
                    value += L[k, i, m] * triangle[m, j]
                vector[at] += value / L[k, i, i] if i == j else value
                at += 1
        if n_machines > 1:
            vector[n_machines * size + k] += u[n_machines * size + k] / math.sqrt(shares[k])


@compiled
def scale_gradient(gradient, hidden, visible, shares, centre, L, result):
    """The derivative in scaled coordinates, from that in the vector: the transpose of `apply_scaling`."""
    n_machines, d = L.shape[:2]
    g, q = centre.shape[1], hidden.shape[1]
    size = q + d * g + d + d * (d + 1) // 2
    change, back = np.empty((d, g + 1)), np.empty((d, g + 1))
    for k in range(n_machines):
        at = k * size
        for j in range(q):
            value = 0.0
            for i in range(j + 1):
                value += hidden[k, j, i] * gradient[at + i]
            result[at + j] = value
        at += q
        for i in range(d):
            change[i, g] = gradient[at + d * g + i]
            for j in range(g):
                change[i, j] = gradient[at + i * g + j] - change[i, g] * centre[k, j]
        for i in range(d):
            for j in range(g + 1):
                back[i, j] = 0.0
                for m in range(i, d):
                    back[i, j] += L[k, m, i] * change[m, j]
        for i in range(d):
            for m in range(g + 1):
                value = 0.0
                for j in range(m + 1):
                    value += visible[k, m, j] * back[i, j]
                result[at + i * (g + 1) + m] = value
        at += d * g + d
        start = at
        for i in range(d):
            for j in range(i + 1):
                value = 0.0
                for m in range(i, d):
                    entry = gradient[start + m * (m + 1) // 2 + j]
                    value += L[k, m, i] * (entry / L[k, m, m] if m == j else entry)
                result[at] = value / math.sqrt(shares[k] * (2.0 if i == j else 1.0))
                at += 1
        if n_machines > 1:
            result[n_machines * size + k] = gradient[n_machines * size + k] / math.sqrt(shares[k])
