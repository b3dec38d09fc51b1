r"""
How a theta function is summed
==============================

The theta function is a sum over all integer vectors,

.. math:: \tilde\theta(z\mid Q) = \sum_{n\in\mathbb{Z}^g} \exp\left(-\tfrac12 n^\top Qn + n^\top z\right).

Only the terms in an ellipsoid matter. We reduce the basis of the lattice so that this ellipsoid becomes round,
count its terms, and see that the Poisson dual of the sum is short where the sum itself is long. A sum by brute
force confirms the result.
"""

# %%
# **Reduce.** Here Q belongs to a skewed basis of the plane. Subtracting multiples of the shorter basis vector from
# the longer one gives a short basis of the same lattice, so the sum has the same terms in another order. (In more
# dimensions the library uses the LLL algorithm.) Terms outside the radius R around the centre :math:`Q^{-1}z` are
# below exp(−R²/2), relative to the height of the Gaussian at its centre.

import matplotlib.pyplot as plt
import numpy as np
import torch

from rtbm import ThetaPlan, log_theta
from rtbm.plotting import DARK, GREY, LIGHT, WARM

Q = np.array([[10.6, 28.2], [28.2, 75.4]])
given = np.linalg.cholesky(Q).T  # its columns are the basis: the length of Bn is √(nᵀQn)
short, long = given.T
while True:
    if np.linalg.norm(short) > np.linalg.norm(long):
        short, long = long, short
    multiple = round(short @ long / (short @ short))
    if multiple == 0:
        break
    long = long - multiple * short
reduced = np.stack([short, long], axis=1)
U = np.rint(np.linalg.solve(given, reduced)).astype(int)
print("change of basis U =", U.tolist(), " UᵀQU =", np.round(U.T @ Q @ U, 2).tolist())

radius, z = 7.0, np.array([1.0, 2.5])
centre = np.linalg.solve(given.T, z)  # B Q⁻¹ z
grid = np.stack(np.meshgrid(*[np.arange(-60, 61)] * 2), axis=-1).reshape(-1, 2)
points = grid @ reduced.T
distance = np.linalg.norm(points - centre, axis=1)
inside = distance < radius
for name, basis in (("given", given), ("reduced", reduced)):
    n = np.rint(np.linalg.solve(basis, points[inside].T))
    print(
        f"terms in the ellipse: {inside.sum()}; in its bounding box, {name} basis: {np.prod(np.ptp(n, axis=1) + 1):.0f}"
    )

fig, axes = plt.subplots(1, 3, figsize=(8, 3.1), layout="constrained")
for ax, basis, title in zip(axes, (given, reduced), ("given basis", "reduced basis"), strict=False):
    ax.plot(*points.T, "o", color=GREY, ms=3)
    for vector in basis.T:
        ax.annotate(
            "", vector, (0, 0), arrowprops={"arrowstyle": "-|>", "color": WARM, "lw": 2, "shrinkA": 0, "shrinkB": 0}
        )
    ax.set(title=title)
axes[2].plot(*points[~inside].T, "o", color=GREY, ms=3)
dots = axes[2].scatter(*points[inside].T, c=-(distance[inside] ** 2) / np.log(100), s=16, cmap="Blues")
axes[2].plot(*centre, "+", color=WARM, ms=10, mew=2)
axes[2].add_patch(plt.Circle(centre, radius, fill=False, color=DARK))
axes[2].set(title=f"{inside.sum()} terms")
fig.colorbar(dots, ax=axes[2], label="log₁₀ of the term, relative", location="bottom")
for ax in axes:
    ax.set(xlim=(-9.5, 9.5), ylim=(-9.5, 9.5), aspect="equal", xticks=[], yticks=[])
plt.show()

# %%
# **Transform.** If Q is small, the terms lie dense and the sum is long. Poisson's formula turns it into a sum over
# the dual lattice, where small becomes large:
#
# .. math:: \tilde\theta(z\mid Q) = \frac{(2\pi)^{g/2}}{\sqrt{\det Q}} \sum_{m\in\mathbb{Z}^g}
#           \exp\left(\tfrac12 (z - 2\pi i m)^\top Q^{-1}(z - 2\pi i m)\right).
#
# For Q = q·S with a fixed matrix S we count the terms of both sums, and those that the library takes in phase I
# (argument z) and phase II (argument iz). It keeps one of each pair ±m that oscillates, and may transform some
# coordinates only. The panel on the right compares log θ̃ with a sum of 3,721 terms by brute force, for 200 random
# arguments. The tolerance bounds the relative error of θ̃, and so the absolute error of its logarithm.

S = np.array([[1.0, 0.3], [0.3, 1.0]])
sizes = np.geomspace(0.5, 100, 25)
forms = [(q * S, 4 * np.pi**2 / q * np.linalg.inv(S)) for q in sizes]
counts = [[(((grid @ form) * grid).sum(axis=1) < radius**2).sum() for form in pair] for pair in forms]
fig, axes = plt.subplots(1, 2, figsize=(8, 3.3), layout="constrained")
for number, colour, label in zip(np.transpose(counts), (LIGHT, WARM), ("sum over n", "Poisson dual"), strict=True):
    axes[0].loglog(sizes, number, "--", color=colour, label=label)
for phase, style in (("I", "-"), ("II", ":")):
    taken = [ThetaPlan(q * S, phase=phase, tolerance=1e-10).n_terms for q in sizes]
    axes[0].loglog(sizes, taken, style, color=DARK, label=f"library, phase {phase}")
    print(f"most terms that the library takes in phase {phase}: {max(taken)}")
axes[0].set(
    xlabel="size q of the matrix", ylabel="number of terms", title="terms for a tolerance of 1e-10", ylim=(0.7, 1e4)
)
axes[0].legend(ncols=2, fontsize=9)

arguments = np.random.default_rng(0).normal(size=(200, 2))
near = grid[np.abs(grid).max(axis=1) <= 30]
exponents = [arguments @ near.T - 0.5 * ((near @ form) * near).sum(axis=1) for form, _ in forms]
brute = torch.logsumexp(torch.from_numpy(np.array(exponents)), dim=-1)
for tolerance, colour in ((1e-4, WARM), (1e-8, LIGHT), (1e-12, DARK)):
    values = torch.stack([log_theta(arguments, form, tolerance=tolerance) for form, _ in forms])
    errors = (values - brute).abs().amax(dim=1).numpy()
    axes[1].loglog(sizes, np.maximum(errors, 1e-17), color=colour, label=f"tolerance {tolerance:.0e}")
    print(f"tolerance {tolerance:.0e}: largest error of log θ̃ {errors.max():.0e}")
axes[1].set(
    xlabel="size q of the matrix",
    ylabel="largest error of log θ̃",
    title="against a sum by brute force",
    ylim=(1e-18, 1),
)
axes[1].legend(ncols=2, fontsize=9)
plt.show()

# %%
# The plain sum takes hundreds of terms for small q, the dual sum for large q. The library never takes more than a
# few dozen, and its errors stay below the tolerance until rounding sets the limit.
