"""
Theta functions as waves
========================

The Kadomtsev-Petviashvili (KP) equation describes long waves in shallow water, in scaled units and in a moving
frame:

.. math:: (u_t + 6 u u_x + u_{xxx})_x + 3 u_{yy} = 0.

Theta functions solve it. With two coordinates they give patterns of hexagons, as they are seen on beaches where two
trains of waves cross. We compute two such waves, check them by exact derivatives, and let one move.
"""

# %%
# With wave numbers κ = (κ₁, κ₂) along x, λ along y and frequencies ω, the height of the water above its mean is
#
# .. math:: u(x, y, t) = 2\,\partial_x^2 \log\tilde\theta(i\zeta\mid Q), \qquad \zeta = \kappa x + \lambda y + \omega t.
#
# This solves the KP equation if θ̃ satisfies Hirota's bilinear equation, with a constant of integration C:
#
# .. math:: (D_x^4 + D_x D_t + 3 D_y^2 + C)\,\tilde\theta\cdot\tilde\theta = 0.
#
# By the addition theorem, θ̃(i(ζ + w)) θ̃(i(ζ − w)) is a sum of four products of a function of ζ and a function of
# w. Hirota's derivatives act on w alone, at w = 0. The four functions of ζ are linearly independent. So the
# equation must hold for each of the four functions of w, which are theta functions of 2Q with characteristics 0 and
# ½. These four equations are linear in C and in the symmetric matrix :math:`M = \frac12(\kappa\omega^\top +
# \omega\kappa^\top) + 3\lambda\lambda^\top`, four unknowns together. So we may choose Q and κ. Then M gives ω₁, ω₂
# and κ₁λ₂ − κ₂λ₁; we take λ orthogonal to κ.

import math

import matplotlib.pyplot as plt
import torch
from matplotlib.animation import FuncAnimation

from rtbm import riemann_theta, theta_moments


def wave_numbers(Q, kappa):
    """The rows κ, λ and ω of a solution of the KP equation."""
    omega = 1j * Q / math.pi  # of 2Q, where riemann_theta takes arguments ζ / 2π
    unit, along_x = torch.eye(2, dtype=torch.float64) / (2 * math.pi), kappa / (2 * math.pi)
    rows, right = [], []
    for p in ((0, 0), (0.5, 0), (0, 0.5), (0.5, 0.5)):
        value, d11, d12, d22, fourth = (
            riemann_theta([0, 0], omega, derivatives=d, characteristic=(p, (0, 0)), tolerance=1e-15).real
            for d in ([], unit[[0, 0]], unit[[0, 1]], unit[[1, 1]], [along_x] * 4)
        )
        rows.append(torch.stack([4 * d11, 8 * d12, 4 * d22, value]))
        right.append(-16 * fourth)
    m11, m12, m22, _ = torch.linalg.solve(torch.stack(rows), torch.stack(right))
    square = (kappa[0] ** 2 * m22 + kappa[1] ** 2 * m11 - 2 * kappa[0] * kappa[1] * m12) / 3  # (κ₁λ₂ − κ₂λ₁)²
    lam = square.sqrt() * torch.stack([-kappa[1], kappa[0]]) / (kappa @ kappa)  # real where the square is positive
    return torch.stack([kappa, lam, (torch.stack([m11, m22]) - 3 * lam**2) / kappa])


def height(points, Q, numbers):
    """u at points (..., 3) of x, y and t. The second derivatives of log θ̃ are the covariance of `theta_moments`."""
    moments = theta_moments(points @ numbers, Q, phase="II", tolerance=1e-15)
    return 2 * (moments.covariance @ numbers[0]) @ numbers[0]


waves = {}
for name, Q, kappa in (
    ("equal phases", [[2.0, 0.5], [0.5, 2.0]], [1.0, 1.0]),
    ("unequal phases", [[2.0, 0.6], [0.6, 2.4]], [1.0, 0.9]),
):
    Q, kappa = torch.tensor(Q, dtype=torch.float64), torch.tensor(kappa, dtype=torch.float64)
    waves[name] = Q, wave_numbers(Q, kappa)
x, y = torch.linspace(-8, 8, 160, dtype=torch.float64), torch.linspace(-5, 5, 100, dtype=torch.float64)
plane = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
drawing = {"extent": (-8, 8, -5, 5), "origin": "lower", "cmap": "Blues_r"}
fig, axes = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
for ax, (name, wave) in zip(axes, waves.items(), strict=True):
    image = ax.imshow(height(torch.nn.functional.pad(plane, (0, 1)), *wave).numpy(), **drawing)
    ax.set(title=name, xlabel="x", ylabel="y")
    fig.colorbar(image, ax=ax, shrink=0.8, label="height u")
plt.show()

# %%
# **Check.** Autograd differentiates through the theta function to any order. We insert u into the KP equation at
# 100 random points, and compare what is left with the largest term. With the frequencies changed by one per cent,
# the equation fails.


def residual(Q, numbers):
    """The largest left side of the KP equation, relative to its largest term."""
    points = (10 * torch.rand(100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).requires_grad_()

    def derivative(f, coordinate):
        return torch.autograd.grad(f.sum(), points, create_graph=True)[0][:, coordinate]

    u = height(points, Q, numbers)
    u_x, u_yy = derivative(u, 0), derivative(derivative(u, 1), 1)
    u_xx, u_xt = derivative(u_x, 0), derivative(u_x, 2)
    u_xxxx = derivative(derivative(u_xx, 0), 0)
    terms = torch.stack([u_xt, 6 * u_x**2, 6 * u * u_xx, u_xxxx, 3 * u_yy]).detach()
    return float(terms.sum(dim=0).abs().max() / terms.abs().max())


for name, (Q, numbers) in waves.items():
    wrong = numbers * torch.tensor([[1.0], [1.0], [1.01]])
    print(f"{name}: residual {residual(Q, numbers):.0e}, with wrong frequencies {residual(Q, wrong):.0e}")

# %%
# The residual is at the level of rounding. The wave of equal phases has one frequency, so it repeats itself after
# the time 2π/abs(ω). It moves to the right without changing its form.

Q, numbers = waves["equal phases"]
times = torch.linspace(0, 1, 41)[:-1] * 2 * math.pi / float(numbers[2].abs()[0])
frames = [height(torch.nn.functional.pad(plane, (0, 1), value=float(t)), Q, numbers).numpy() for t in times]
fig, ax = plt.subplots(figsize=(4.5, 3), dpi=80, layout="constrained")
image = ax.imshow(frames[0], **drawing)
ax.set(xlabel="x", ylabel="y")
anim = FuncAnimation(fig, lambda i: [image.set_data(frames[i])], frames=len(frames), interval=60)
plt.show()
