"""A toy calorimeter in a solenoid: where particles hit, what is measured, and what stays below threshold."""

from typing import NamedTuple

import numpy as np

from rtbm.common import Floats
from rtbm.datasets.jets.events import LARGEST_ETA, Particles

FIELD, RADIUS = 2.0, 1.15
"""Tesla and metres."""
CELL_ETA, CELLS_PHI = 0.1, 36
CELLS_ETA = round(2 * LARGEST_ETA / CELL_ETA)
LIGHT, HADRONIC = (0.007, 0.10, 0.3), (0.05, 1.0, 1.5)
"""(a, b, c) in σ² = (a E)² + b² E + c² (GeV), for electrons and photons, and for hadrons."""
THRESHOLD, SIGNIFICANCE = 1.0, 2.0
"""A cell counts above so many GeV, and above so many σ."""


class Towers(NamedTuple):
    """Massless deposits of several events, one after another."""

    event: np.ndarray
    pt: Floats
    eta: Floats
    phi: Floats


def measure(particles: Particles, n_events: int, rng: np.random.Generator) -> Towers:
    """The towers that particles leave; `rng` draws the errors of measurement."""
    particles = _bend(particles)
    row = np.clip(((particles.eta + LARGEST_ETA) / CELL_ETA).astype(int), 0, CELLS_ETA - 1)
    column = np.floor(particles.phi * CELLS_PHI / (2 * np.pi)).astype(int) % CELLS_PHI
    cell = (particles.event * CELLS_ETA + row) * CELLS_PHI + column
    energy: Floats = np.zeros(n_events * CELLS_ETA * CELLS_PHI)
    for chosen, resolution in ((particles.is_light, LIGHT), (~particles.is_light, HADRONIC)):
        deposit = np.bincount(cell[chosen], particles.energy[chosen], len(energy))
        energy += _smear(deposit.astype(np.float64), resolution, rng)
    hit = np.flatnonzero(energy)
    event, place = np.divmod(hit, CELLS_ETA * CELLS_PHI)
    row, column = np.divmod(place, CELLS_PHI)
    eta, phi = (row + 0.5) * CELL_ETA - LARGEST_ETA, (column + 0.5) * 2 * np.pi / CELLS_PHI
    return Towers(event, energy[hit] / np.cosh(eta), eta, phi)


def _bend(particles: Particles) -> Particles:
    """Where charged particles arrive in the magnetic field; those that never do are dropped."""
    sine = 0.3 * FIELD * RADIUS / 2 * particles.charge / np.maximum(particles.pt, 1e-12)
    arrives = np.abs(sine) < 1
    kept = particles.take(arrives)
    return kept._replace(phi=kept.phi - np.arcsin(sine[arrives]))


def _smear(deposit: Floats, resolution: tuple[float, float, float], rng: np.random.Generator) -> Floats:
    """Measured energies of cells: those that were hit, with an error, if they exceed the thresholds."""
    hit = np.flatnonzero(deposit)
    measured = deposit[hit] + _sigma(deposit[hit], resolution) * rng.standard_normal(len(hit))
    measured = np.maximum(measured, 0.0)
    seen = (measured >= THRESHOLD) & (measured >= SIGNIFICANCE * _sigma(measured, resolution))
    energy = np.zeros_like(deposit)
    energy[hit[seen]] = measured[seen]
    return energy


def _sigma(energy: Floats, resolution: tuple[float, float, float]) -> Floats:
    a, b, c = resolution
    return np.sqrt((a * energy) ** 2 + b**2 * energy + c**2)
