"""
Write one density in two phases
===============================

The paper defines the machine in two phases: in phase I all parameters are real, and in phase II the parameters
:math:`W` and :math:`b_h` are imaginary. Every density of one phase is also a density of the other, with other
parameters. Here one density is written in both phases, and the printed difference has the size of rounding errors.
The phases differ in the expectations of their hidden units, and in the number of terms that their sums need.
"""

import matplotlib.pyplot as plt
import numpy as np

from rtbm import DiscreteGaussian, RTBMDistribution, log_theta
from rtbm.plotting import DARK, LIGHT, WARM, normal_components

# %%
# ``to_phase`` converts the parameters. The second machine is made anew from the converted parameters, and computes
# its density from them alone.

first = RTBMDistribution(T=[[2.0]], W=[[-4.0]], Q=[[11.0]], b_v=[0.0], b_h=[-2.0])
second = RTBMDistribution.from_natural(first.to_phase("II").natural)
for machine in (first, second):
    values = ", ".join(f"{name} = {getattr(machine, name).item():.3f}" for name in ("T", "W", "Q", "b_v", "b_h"))
    print(f"phase {machine.phase:3} {values}")

v = np.linspace(-6, 8, 1001)
p, q = (machine.log_prob(v[:, None]).exp().numpy() for machine in (first, second))
print(f"highest density {p.max():.3f}, largest difference {np.abs(p - q).max():.0e}")

# %%
# In phase I the density is a sum of Gaussians, one for each integer :math:`h`. In phase II it is one wide Gaussian
# times a periodic factor. The expectation of the hidden unit is a staircase in phase I, and periodic in phase II.


def normal(v, mean, variance):
    """The density of a normal distribution."""
    return np.exp(-0.5 * (v - mean) ** 2 / variance) / np.sqrt(2 * np.pi * variance)


wide = normal(v, -second.b_v.item() / second.T.item(), 1 / second.T.item())
fig, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for weight, mean, variance in normal_components(first):
    (line,) = axes[0].plot(v, weight * normal(v, mean, variance.item()), color=DARK, lw=1.2)
line.set_label("Gaussians")
axes[1].plot(v, wide, color=DARK, lw=1.2, label="wide Gaussian")
axes[1].plot(v, 0.1 * q / wide, color=LIGHT, lw=1.2, label="0.1 × periodic factor")
for ax, density, title in zip(axes, (p, q), ("Phase I: a sum", "Phase II: a product"), strict=False):
    ax.plot(v, density, color=WARM, lw=2, label="density")
    ax.set(title=title, xlabel="v", ylabel="density P(v)", ylim=(0, 0.52))
axes[2].plot(v, first.hidden_mean(v[:, None]), color=DARK, lw=2, label="phase I")
axes[2].plot(v, second.hidden_mean(v[:, None]), color=WARM, lw=2, label="phase II")
axes[2].set(title="Hidden unit", xlabel="v", ylabel="expectation E(h|v)")
for ax in axes:
    ax.legend(frameon=False)
plt.show()

# %%
# The periodic factor is a Fourier series: a sum of cosines with weights :math:`\exp(-\frac12 Qn^2)`. Both sums are
# infinite, and both converge fast. Which of them is shorter depends on the distance of the Gaussians. The three
# machines below have Gaussians of variance 0.1 at distances 0.6, 1.2 and 2.4. The lines show the largest error of the
# first terms, relative to the highest density. The largest terms come first.

fig, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True, layout="constrained")
print("distance  Gaussians  cosines  (for an error below 1e-12)")
for ax, step in zip(axes, (0.6, 1.2, 2.4), strict=True):
    machine = RTBMDistribution.from_lattice([[step**2]], [0.4 * step**2], [[step]], [0.0], [[0.1]])
    exact = machine.log_prob(v[:, None]).exp().numpy()
    states, log_prob = DiscreteGaussian(machine.lattice.A, machine.lattice.a).table()
    gaussians = np.exp(log_prob.numpy()) * normal(v[:, None], step * states[:, 0].numpy(), 0.1)
    T, W, Q, b_v, b_h = (parameter.item() for parameter in machine.to_phase("II").natural[:5])
    n = np.arange(30)
    cosines = np.where(n > 0, 2, 1) * np.exp(-0.5 * Q * n**2) * np.cos(n * (W * v[:, None] + b_h))
    scale = normal(v, -b_v / T, 1 / T) / log_theta([b_h - W * b_v / T], [[Q + W**2 / T]], phase="II").exp().item()
    counts = []
    for terms, colour, label in ((gaussians, DARK, "Gaussians"), (scale[:, None] * cosines, WARM, "cosines")):
        errors = np.abs(terms.cumsum(axis=1) - exact[:, None]).max(axis=0) / exact.max()
        counts.append(1 + int(np.argmax(errors < 1e-12)))
        ax.semilogy(np.arange(1, len(errors) + 1), errors, "o-", ms=4, color=colour, label=label)
    ax.set(title=f"Distance {step:g}", xlabel="number of terms", xlim=(0, 30), ylim=(1e-15, 3))
    print(f"{step:8g}{counts[0]:11}{counts[1]:9}")
axes[0].set_ylabel("largest error")
axes[0].legend(frameon=False)
plt.show()

# %%
# Where Gaussians lie close together, a few cosines are enough. Where they lie far apart, a few Gaussians are enough.
# The library may take either sum, whatever the phase of the parameters: it takes the shorter one, unless cosines
# would cancel and cost digits.
