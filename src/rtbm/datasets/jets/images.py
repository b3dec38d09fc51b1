"""Pictures of jets: centred, turned and mirrored, so that what they have in common lies in the same place."""

import numpy as np

from rtbm.common import Floats
from rtbm.datasets.jets.clustering import Jets

PIXELS, HALF_WIDTH = 32, 1.6


def draw_images(jets: Jets) -> Floats:
    """Images (n, 32, 32) of the transverse momentum (GeV) in each pixel of 0.1 × 0.1; rows run from top to bottom."""
    n, (jet, pt, eta, phi) = len(jets.event), jets.towers
    x = eta - jets.eta[jet]
    y = (phi - jets.phi[jet] + np.pi) % (2 * np.pi) - np.pi
    total = np.bincount(jet, pt, n)
    x, y = (part - (np.bincount(jet, pt * part, n) / total)[jet] for part in (x, y))
    x, y = _turn(x, y, jet, pt, n)
    right = np.bincount(jet, pt * np.sign(x), n) >= 0
    x = np.where(right[jet], x, -x)
    columns, rows = (np.floor((part + HALF_WIDTH) * PIXELS / (2 * HALF_WIDTH)).astype(int) for part in (x, -y))
    inside = (np.minimum(columns, rows) >= 0) & (np.maximum(columns, rows) < PIXELS)
    place = (jet * PIXELS + rows) * PIXELS + columns
    sums = np.bincount(place[inside], pt[inside], n * PIXELS**2).astype(np.float64)
    return sums.reshape(n, PIXELS, PIXELS)


def _turn(x: Floats, y: Floats, jet: np.ndarray, pt: Floats, n: int) -> tuple[Floats, Floats]:
    """Turn each jet so that the mean direction of its momentum, seen from the centre, points down."""
    distance = np.maximum(np.hypot(x, y), 1e-12)
    mean_x, mean_y = (np.bincount(jet, pt * part / distance, n) for part in (x, y))
    angle = (-np.pi / 2 - np.arctan2(mean_y, mean_x))[jet]
    return np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y
