"""What the tab of theta functions computes: log θ̃ over a plane, and the complex function in colours."""

import colorsys
from typing import NamedTuple

import numpy as np
import torch

from rtbm.common import TWO_PI, Floats
from rtbm.theta import log_theta, riemann_theta

REAL_POINTS, COMPLEX_POINTS = 100, 90
"""Points of each side of the pictures. More are finer, and slower."""
SATURATION = 0.62
"""Saturation of the colours of the phase."""


class RealPlane(NamedTuple):
    """log θ̃(z|Q) (n, n) over a square of z, by rows of z₂."""

    z: Floats
    values: Floats


def quadratic_form(q11: float, q12: float, q22: float) -> Floats:
    """The symmetric matrix of its entries."""
    return np.array([[q11, q12], [q12, q22]])


@torch.no_grad()
def real_plane(Q: Floats, phase: str, reach: float) -> RealPlane:
    """log θ̃(z|Q), or log θ̃(iz|Q) in phase II, for z in a square around 0 (g = 2)."""
    z = np.linspace(-reach, reach, REAL_POINTS)
    grid = np.stack(np.meshgrid(z, z), axis=-1)
    return RealPlane(z, log_theta(torch.from_numpy(grid), torch.from_numpy(Q), phase=phase).numpy())


def complex_plane(Q: Floats, shift: Floats, second: complex, reach: float = 1.0) -> Floats:
    """θ(z|Ω) over z₁ in a square of the complex plane, at a fixed z₂, as (n, n) complex numbers without their growth.

    Ω = shift + iQ/2π. The function grows like exp(π Im z (Im Ω)⁻¹ Im z), which is divided out, so that the size that
    remains has the periods of the lattice.
    """
    x = np.linspace(-reach, reach, COMPLEX_POINTS)
    first = x[None, :] + 1j * x[:, None]
    z = np.stack([first, np.full_like(first, second)], axis=-1)
    u, w = riemann_theta(torch.from_numpy(z), torch.from_numpy(shift + 1j * Q / TWO_PI), parts=True)
    growth = np.pi * np.einsum("...i,ij,...j->...", z.imag, np.linalg.inv(Q / TWO_PI), z.imag)
    return np.exp(u.numpy() - growth) * w.numpy()


def phase_colours(values: np.ndarray) -> np.ndarray:
    """Colours (n, m) as RGBA in uint32: hue for the phase, dark where the size is small, so zeros are black.

    Examples
    --------
    >>> phase_colours(np.array([[1.0 + 0j, 0j]])).dtype
    dtype('uint32')
    """
    hue = (np.angle(values) / TWO_PI) % 1.0
    size = np.abs(values)
    light = size / (size + np.median(size) + 1e-300)
    table = np.array([colorsys.hsv_to_rgb(h, SATURATION, 1.0) for h in np.linspace(0, 1, 256)])
    rgb = table[(255 * hue).astype(int)] * np.sqrt(light)[..., None]
    pixels = np.empty((*values.shape, 4), dtype=np.uint8)
    pixels[..., :3], pixels[..., 3] = 255 * rgb, 255
    return pixels.view(np.uint32)[..., 0]
