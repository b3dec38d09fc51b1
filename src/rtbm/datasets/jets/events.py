"""Proton collisions at 14 TeV by Pythia: visible particles of many events in flat arrays, and what made them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rtbm.common import Floats
from rtbm.datasets.jets.tools import INSTALL, import_tool
from rtbm.errors import RTBMError

PT_RANGE = (300.0, 400.0)
"""GeV; of the hard process, and of the jets that are kept."""
LARGEST_ETA = 3.0
INVISIBLE = (12, 13, 14, 16)
"""Muons and neutrinos leave no energy in a calorimeter."""
BEAMS = ("Print:quiet = on", "Beams:eCM = 14000.", "Random:setSeed = on")
HARD = (f"PhaseSpace:pTHatMin = {PT_RANGE[0]}", f"PhaseSpace:pTHatMax = {PT_RANGE[1]}")
PROCESSES = {
    "W": (
        *HARD,
        "WeakDoubleBoson:ffbar2WW = on",
        "24:onMode = off",
        "24:onIfAny = 1 2 3 4 5",
        "SpaceShower:pTmaxMatch = 1",
    ),
    "QCD": (*HARD, "HardQCD:all = on"),
    "pile-up": ("SoftQCD:nonDiffractive = on",),
}
W_BOSON, HARD_OUTGOING = 24, -23
"""A particle number, and Pythia's status of what leaves a hard process or a decay of a resonance."""


class Particles(NamedTuple):
    """Particles of several events, one after another."""

    event: np.ndarray
    """The number of the event of each."""
    pt: Floats
    eta: Floats
    phi: Floats
    energy: Floats
    charge: Floats
    is_light: np.ndarray
    """Whether it is an electron or a photon."""

    def take(self, index: np.ndarray) -> "Particles":
        """Some of the particles, by number or by mask."""
        return Particles(*(part[index] for part in self))


class Partons(NamedTuple):
    """What decides whether a jet is what its label says: quarks and bosons of several events."""

    event: np.ndarray
    pt: Floats
    eta: Floats
    phi: Floats
    is_w: np.ndarray
    """A W boson that decays; else an outgoing parton."""
    parent: np.ndarray
    """The number of the particle in its event, for a W; and that of its mother, for a quark."""


class Events(NamedTuple):
    """Several collisions."""

    n_events: int
    particles: Particles
    partons: Partons


def collide(process: str, seed: int, batch: int) -> Iterator[Events]:
    """Batches of events without end; the same seed gives the same events."""
    pythia8 = import_tool("pythia8mc")
    generator = pythia8.Pythia("", False)
    for setting in (*BEAMS, f"Random:seed = {seed}", *PROCESSES[process]):
        if not generator.readString(setting):
            raise RTBMError(f"Pythia does not know the setting {setting!r}: {INSTALL}")
    if not generator.init():
        raise RTBMError(f"Pythia could not be initialised for {process!r}")
    while True:
        yield _flatten(generator.nextBatch(batch), generator.particleData.charge)


def _flatten(batch: Any, charge_of: Any) -> Events:
    ak = import_tool("awkward")
    records = batch.prt
    counts = np.asarray(ak.num(records))
    event = np.repeat(np.arange(len(counts)), counts)
    flat = ak.flatten(records)
    number, status, mother = (np.asarray(flat[name]) for name in ("id", "status", "mother1"))
    momentum = [np.asarray(flat.p[name]) for name in ("px", "py", "pz", "e")]
    kind = np.abs(number)
    visible = (status > 0) & ~np.isin(kind, INVISIBLE)
    pt, eta, phi = _directions(*(part[visible] for part in momentum[:3]))
    numbers, which = np.unique(number[visible], return_inverse=True)
    charge = np.array([charge_of(int(n)) for n in numbers])[which]
    energy, is_light = momentum[3][visible], np.isin(kind[visible], (11, 22))
    particles = Particles(event[visible], pt, eta, phi, energy, charge, is_light)
    central = np.abs(eta) < LARGEST_ETA
    first = np.cumsum(counts) - counts
    return Events(len(counts), particles.take(central), _partons(event, number, status, mother, first, momentum))


def _partons(
    event: np.ndarray, number: np.ndarray, status: np.ndarray, mother: np.ndarray, first: np.ndarray, momentum: Any
) -> Partons:
    """Outgoing partons of the hard process, or the quarks of W bosons and these bosons."""
    kind = np.abs(number)
    parton = (status == HARD_OUTGOING) & ((kind <= 6) | (kind == 21))
    decayed = np.zeros(len(number), dtype=bool)
    mothers = (mother + first[event])[parton]
    decayed[mothers[kind[mothers] == W_BOSON]] = True
    kept = parton | decayed
    place = np.arange(len(number)) - first[event]
    directions = _directions(*(part[kept] for part in momentum[:3]))
    return Partons(event[kept], *directions, decayed[kept], np.where(decayed, place, mother)[kept])


def _directions(px: Floats, py: Floats, pz: Floats) -> tuple[Floats, Floats, Floats]:
    """Transverse momentum, pseudorapidity and azimuth."""
    pt = np.hypot(px, py)
    return pt, np.arcsinh(pz / np.maximum(pt, 1e-12)), np.arctan2(py, px)
