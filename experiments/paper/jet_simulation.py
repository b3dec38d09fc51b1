"""Simulated jet images: collisions, pile-up, calorimeter, jets and their true origin, images.

Each step takes many events at once, as flat arrays. Pythia, fastjet and awkward come with the extra `jets`, and are
imported where they are used. `generate(7500, seed=1)` gave the images of `rtbm.datasets.jets`.
"""

from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from rtbm.common import TWO_PI, Floats
from rtbm.datasets.jets import JetImages, import_tool
from rtbm.errors import InvalidInputError, RTBMError
from rtbm.validation import check_integer

# Changing any of these constants gives other images than those of the sample that comes with the library.

PT_RANGE = (300.0, 400.0)
"""Range of transverse momentum (GeV), of the hard process and of the jets that are kept."""
LARGEST_ETA = 3.0
"""Pseudorapidity at which the calorimeter ends."""
INVISIBLE = (12, 13, 14, 16)
"""Particle numbers of muons and neutrinos, which leave no energy in a calorimeter."""
W_BOSON, HARD_OUTGOING = 24, -23
"""A particle number, and Pythia's status of particles that leave a hard process or the decay of a resonance."""
BEAM_SETTINGS = ("Print:quiet = on", "Beams:eCM = 14000.", "Random:setSeed = on")
HARD_SETTINGS = (f"PhaseSpace:pTHatMin = {PT_RANGE[0]}", f"PhaseSpace:pTHatMax = {PT_RANGE[1]}")
W_DECAY_SETTINGS = ("24:onMode = off", "24:onIfAny = 1 2 3 4 5", "SpaceShower:pTmaxMatch = 1")
PROCESS_SETTINGS = {
    "QCD": (*HARD_SETTINGS, "HardQCD:all = on"),
    "W": (*HARD_SETTINGS, "WeakDoubleBoson:ffbar2WW = on", *W_DECAY_SETTINGS),
    "pile-up": ("SoftQCD:nonDiffractive = on",),
}
"""Pythia's settings for each process; the first two are those of labels 0 and 1."""
EVENTS_PER_BATCH = 200
"""Number of events that are simulated together; it decides which random numbers each event gets."""
POOL_EVENTS = 1000
"""Number of collisions from which pile-up is drawn."""
LARGEST_SEED = 89_999_999
"""Pythia takes seeds up to 900,000,000, and `generate` uses ten of them for each of its own."""

FIELD, RADIUS = 2.0, 1.15
"""Magnetic field (tesla) and radius (metres) of the calorimeter."""
CELL_ETA, CELLS_PHI = 0.1, 36
CELLS_ETA = round(2 * LARGEST_ETA / CELL_ETA)
"""Cells: their width in pseudorapidity, and their numbers around the beam and along it."""
LIGHT_RESOLUTION, HADRONIC_RESOLUTION = (0.007, 0.10, 0.3), (0.05, 1.0, 1.5)
"""(a, b, c) in σ² = (a E)² + b² E + c² (GeV), for electrons and photons, and for hadrons."""
CELL_THRESHOLD, CELL_SIGNIFICANCE = 1.0, 2.0
"""Smallest energy of a cell that is read out: in GeV, and in σ."""

JET_RADIUS, SUBJET_RADIUS, SUBJET_SHARE = 1.2, 0.2, 0.05
"""Radius of anti-kT jets; radius of kT subjets, and the smallest share of the momentum at which trimming keeps one."""
JET_ETA = 2.0
"""Largest pseudorapidity of a jet."""
MATCH_RADIUS = 1.0
"""Largest distance between a jet and the W boson or parton that it is taken for."""
QUARK_RADIUS, QUARK_PT = 1.2, 30.0
"""Largest distance between a jet and the quarks of its W boson, and their smallest transverse momentum (GeV)."""
PIXELS, HALF_WIDTH = 32, 1.6
"""Pixels along each side of an image, and half its width in pseudorapidity and azimuth."""


def generate(n: int, seed: int = 0, pile_up: float = 0.0, advance: Callable[[int], None] | None = None) -> JetImages:
    """Make n images, half of them of W bosons, with Pythia and fastjet (the extra `jets`): minutes for thousands.

    The same seed gives the same images with the same versions of both on the same kind of machine.

    Parameters
    ----------
    n : int
        An even number of images.
    seed : int
        From 0 to 89,999,999.
    pile_up : float
        The mean number of other collisions in each event; 50 in the noisier images of Baldi et al.
    advance : callable
        Called with the number of images that were just made.
    """
    check_integer(n, "n", 2)
    check_integer(seed, "seed", 0)
    if n % 2:
        raise InvalidInputError(f"n must be even, for as many images of each label, got {n}")
    if seed > LARGEST_SEED:
        raise InvalidInputError(f"seed must be at most {LARGEST_SEED}, for Pythia, got {seed}")
    if not isinstance(pile_up, Real) or isinstance(pile_up, bool) or not 0 <= float(pile_up) <= 1000:
        raise InvalidInputError(f"pile_up must be a number from 0 to 1000, got {pile_up!r}")
    pool = next(collide("pile-up", 10 * seed + 3, POOL_EVENTS)) if pile_up else None
    parts = [make_images(n // 2, label, seed, pile_up, pool, advance or (lambda done: None)) for label in (0, 1)]
    order = np.random.default_rng(seed).permutation(n)
    return JetImages(np.concatenate(parts)[order], np.repeat([0, 1], n // 2)[order])


def make_images(
    n: int,
    label: int,
    seed: int,
    pile_up: float = 0.0,
    pool: "Events | None" = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Floats:
    """n images (n, 32, 32) of one label, rounded to half precision. A smaller n gives the first of the same images.

    Pile-up is drawn from a pool of events; without a pool there is none. `advance` is called with the number of images
    that were just made.
    """
    process, is_true = (("QCD", is_parton), ("W", is_w))[label]
    rng = np.random.default_rng([seed, label])
    images = np.empty((0, PIXELS, PIXELS))
    for events in collide(process, 10 * seed + 1 + label, EVENTS_PER_BATCH):
        if len(images) >= n:
            break
        particles = events.particles if pool is None else add_pile_up(events.particles, pool, pile_up, rng)
        jets = find_jets(measure(particles, events.n_events, rng), events.n_events)
        found = draw_images(jets)[is_true(jets, events.partons)].astype(np.float16)
        advance(min(len(found), n - len(images)))
        images = np.concatenate([images, found])
    return images[:n]


# Events


class Particles(NamedTuple):
    """Particles of several events, in the order of the events."""

    event: np.ndarray
    """The number of the event of each particle."""
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
    """Quarks, gluons and W bosons of several events, which decide the true label of a jet."""

    event: np.ndarray
    pt: Floats
    eta: Floats
    phi: Floats
    is_w: np.ndarray
    """True for a W boson that decays, False for an outgoing parton."""
    parent: np.ndarray
    """For a W boson its own number in the event, for a parton the number of its mother."""


class Events(NamedTuple):
    """Several collisions: visible particles, and the partons that they come from."""

    n_events: int
    particles: Particles
    partons: Partons


def collide(process: str, seed: int, batch: int) -> Iterator[Events]:
    """Simulate proton collisions at 14 TeV by Pythia, in endless batches. The same seed gives the same events."""
    pythia8 = import_tool("pythia8mc")
    generator = pythia8.Pythia("", False)
    for setting in (*BEAM_SETTINGS, f"Random:seed = {seed}", *PROCESS_SETTINGS[process]):
        if not generator.readString(setting):
            raise RTBMError(f"Pythia does not know the setting {setting!r}: install the version of the extra `jets`")
    if not generator.init():
        raise RTBMError(f"Pythia could not be initialised for {process!r}")
    while True:
        yield _flatten(generator.nextBatch(batch), generator.particleData.charge)


def _flatten(batch: Any, charge_of: Any) -> Events:
    """Turn a batch of Pythia into flat arrays; `charge_of` gives the charge of a particle number."""
    ak = import_tool("awkward")
    counts, flat = np.asarray(ak.num(batch.prt)), ak.flatten(batch.prt)
    event = np.repeat(np.arange(len(counts)), counts)
    number, status, mother = (np.asarray(flat[name]) for name in ("id", "status", "mother1"))
    momentum = [np.asarray(flat.p[name]) for name in ("px", "py", "pz", "e")]
    kind = np.abs(number)
    visible = (status > 0) & ~np.isin(kind, INVISIBLE)
    pt, eta, phi = _directions(*(part[visible] for part in momentum[:3]))
    numbers, which = np.unique(number[visible], return_inverse=True)
    charge = np.array([charge_of(int(n)) for n in numbers])[which]
    energy, is_light = momentum[3][visible], np.isin(kind[visible], (11, 22))
    particles = Particles(event[visible], pt, eta, phi, energy, charge, is_light)
    particles = particles.take(np.abs(eta) < LARGEST_ETA)
    # the partons that leave the hard process, or the quarks of W bosons and these bosons
    parton = (status == HARD_OUTGOING) & ((kind <= 6) | (kind == 21))
    decayed = np.zeros(len(number), dtype=bool)
    first = (np.cumsum(counts) - counts)[event]
    mothers = (mother + first)[parton]
    decayed[mothers[kind[mothers] == W_BOSON]] = True
    kept, own = parton | decayed, np.arange(len(number)) - first
    directions = _directions(*(part[kept] for part in momentum[:3]))
    partons = Partons(event[kept], *directions, decayed[kept], np.where(decayed, own, mother)[kept])
    return Events(len(counts), particles, partons)


def _directions(px: Floats, py: Floats, pz: Floats) -> tuple[Floats, Floats, Floats]:
    """Transverse momentum, pseudorapidity and azimuth."""
    pt = np.hypot(px, py)
    return pt, np.arcsinh(pz / np.maximum(pt, 1e-12)), np.arctan2(py, px)


def _angle(difference: Floats) -> Floats:
    """A difference of azimuths, between −π and π."""
    return (difference + np.pi) % TWO_PI - np.pi


def add_pile_up(particles: Particles, pool: Events, pile_up: float, rng: np.random.Generator) -> Particles:
    """Add to each event the particles of other collisions, each rotated and mirrored at random.

    The number of added collisions has a Poisson distribution with mean `pile_up`.
    """
    events = np.unique(particles.event)
    hosts = np.repeat(events, rng.poisson(pile_up, len(events)))
    guests = rng.integers(pool.n_events, size=len(hosts))
    turn, mirror = rng.uniform(0, TWO_PI, len(hosts)), rng.choice((-1.0, 1.0), len(hosts))
    first = np.searchsorted(pool.particles.event, np.arange(pool.n_events + 1))
    lengths = np.diff(first)[guests]
    guest = np.repeat(np.arange(len(guests)), lengths)
    place = np.arange(len(guest)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    added = pool.particles.take(first[guests][guest] + place)
    added = added._replace(event=hosts[guest], phi=added.phi + turn[guest], eta=added.eta * mirror[guest])
    return Particles(*(np.concatenate(pair) for pair in zip(particles, added, strict=True)))


# Calorimeter


class Towers(NamedTuple):
    """Energy deposits, taken as massless, of several events, in the order of the events."""

    event: np.ndarray
    pt: Floats
    eta: Floats
    phi: Floats


def measure(particles: Particles, n_events: int, rng: np.random.Generator) -> Towers:
    """Measure particles with a toy calorimeter inside a solenoid; `rng` draws the measurement errors."""
    particles = bend(particles)
    row = np.clip(((particles.eta + LARGEST_ETA) / CELL_ETA).astype(int), 0, CELLS_ETA - 1)
    column = np.floor(particles.phi * CELLS_PHI / TWO_PI).astype(int) % CELLS_PHI
    cell = (particles.event * CELLS_ETA + row) * CELLS_PHI + column
    energy: Floats = np.zeros(n_events * CELLS_ETA * CELLS_PHI)
    for chosen, resolution in ((particles.is_light, LIGHT_RESOLUTION), (~particles.is_light, HADRONIC_RESOLUTION)):
        deposit = np.bincount(cell[chosen], particles.energy[chosen], len(energy))
        energy += _smear(deposit.astype(np.float64), resolution, rng)
    hit = np.flatnonzero(energy)
    event, place = np.divmod(hit, CELLS_ETA * CELLS_PHI)
    row, column = np.divmod(place, CELLS_PHI)
    eta, phi = (row + 0.5) * CELL_ETA - LARGEST_ETA, (column + 0.5) * TWO_PI / CELLS_PHI
    return Towers(event, energy[hit] / np.cosh(eta), eta, phi)


def bend(particles: Particles) -> Particles:
    """Move charged particles to where the magnetic field takes them; drop those that do not reach the calorimeter."""
    sine = 0.3 * FIELD * RADIUS / 2 * particles.charge / np.maximum(particles.pt, 1e-12)
    arrives = np.abs(sine) < 1
    kept = particles.take(arrives)
    return kept._replace(phi=kept.phi - np.arcsin(sine[arrives]))


def _smear(deposit: Floats, resolution: tuple[float, float, float], rng: np.random.Generator) -> Floats:
    """Add measurement errors to the cells that were hit, and set those below the thresholds to 0."""
    hit = np.flatnonzero(deposit)
    measured = deposit[hit] + _sigma(deposit[hit], resolution) * rng.standard_normal(len(hit))
    measured = np.maximum(measured, 0.0)
    seen = (measured >= CELL_THRESHOLD) & (measured >= CELL_SIGNIFICANCE * _sigma(measured, resolution))
    energy = np.zeros_like(deposit)
    energy[hit[seen]] = measured[seen]
    return energy


def _sigma(energy: Floats, resolution: tuple[float, float, float]) -> Floats:
    a, b, c = resolution
    return np.sqrt((a * energy) ** 2 + b**2 * energy + c**2)


# Jets


class Jets(NamedTuple):
    """Trimmed jets: the event and the direction of each, and the towers of all."""

    event: np.ndarray
    eta: Floats
    phi: Floats
    towers: Towers
    """Here `event` is the position of the jet in this list."""


def find_jets(towers: Towers, n_events: int) -> Jets:
    """Find the hardest anti-kT jet of each event and trim it; keep those within PT_RANGE and JET_ETA."""
    fastjet, ak = import_tool("fastjet"), import_tool("awkward")

    def cluster(momenta: Any, algorithm: Any, radius: float) -> Any:
        return fastjet.ClusterSequence(momenta, fastjet.JetDefinition(algorithm, radius)).constituents()

    def total_pt(constituents: Any) -> Any:
        return np.hypot(ak.sum(constituents.px, axis=-1), ak.sum(constituents.py, axis=-1))

    counts = np.bincount(towers.event, minlength=n_events)
    full = np.flatnonzero(counts)
    directions = {"px": np.cos(towers.phi), "py": np.sin(towers.phi), "pz": np.sinh(towers.eta)}
    momenta = {name: towers.pt * factor for name, factor in {**directions, "E": np.cosh(towers.eta)}.items()}
    momenta = ak.unflatten(ak.zip(momenta, with_name="Momentum4D"), counts[full])
    constituents = cluster(momenta, fastjet.antikt_algorithm, JET_RADIUS)
    inside = constituents[ak.argmax(total_pt(constituents), axis=1, keepdims=True)][:, 0]  # of the hardest jet
    subjets = cluster(inside, fastjet.kt_algorithm, SUBJET_RADIUS)
    kept = subjets[total_pt(subjets) > SUBJET_SHARE * total_pt(inside[:, np.newaxis])[:, 0]]
    trimmed = ak.flatten(kept, axis=2)
    pt, eta, phi = _directions(*(np.asarray(ak.sum(trimmed[name], axis=1)) for name in directions))
    good = np.flatnonzero((pt > PT_RANGE[0]) & (pt < PT_RANGE[1]) & (np.abs(eta) < JET_ETA))
    sizes, flat = np.asarray(ak.num(trimmed[good])), ak.flatten(trimmed[good])
    towers = Towers(np.repeat(np.arange(len(good)), sizes), *_directions(*(np.asarray(flat[n]) for n in directions)))
    return Jets(full[good], eta[good], phi[good], towers)


def is_w(jets: Jets, partons: Partons) -> np.ndarray:
    """Whether each jet contains a W boson and both of its quarks."""
    jet, distance = _match(jets, partons)
    found = np.zeros(len(jets.event), dtype=bool)
    boson = partons.is_w & (distance < MATCH_RADIUS)
    quark = ~partons.is_w & (distance < QUARK_RADIUS) & (partons.pt > QUARK_PT)
    for i in np.flatnonzero(boson):
        daughters = quark & (partons.event == partons.event[i]) & (partons.parent == partons.parent[i])
        found[jet[i]] |= daughters.sum() == 2
    return found


def is_parton(jets: Jets, partons: Partons) -> np.ndarray:
    """Whether each jet lies near a parton of the hard process."""
    jet, distance = _match(jets, partons)
    near = ~partons.is_w & (distance < MATCH_RADIUS)
    return np.bincount(jet[near], minlength=len(jets.event)) > 0


def _match(jets: Jets, partons: Partons) -> tuple[np.ndarray, Floats]:
    """The position of the jet in the event of each parton, and their distance: infinite if the event has no jet."""
    place = np.full(int(partons.event.max(initial=-1)) + 1, -1)
    place[jets.event] = np.arange(len(jets.event))
    jet = place[partons.event]
    distance = np.hypot(partons.eta - jets.eta[jet], _angle(partons.phi - jets.phi[jet]))
    return jet, np.where(jet >= 0, distance, np.inf)


# Images


def draw_images(jets: Jets) -> Floats:
    """Images (n, 32, 32) of the transverse momentum (GeV) in each pixel of 0.1 × 0.1; rows run from top to bottom.

    Jets are centred, rotated and mirrored, so that common features lie in the same pixels.
    """
    n, (jet, pt, eta, phi) = len(jets.event), jets.towers
    x = eta - jets.eta[jet]
    y = _angle(phi - jets.phi[jet])
    total = np.bincount(jet, pt, n)
    x, y = (part - (np.bincount(jet, pt * part, n) / total)[jet] for part in (x, y))
    distance = np.maximum(np.hypot(x, y), 1e-12)
    mean_x, mean_y = (np.bincount(jet, pt * part / distance, n) for part in (x, y))
    angle = (-np.pi / 2 - np.arctan2(mean_y, mean_x))[jet]  # the mean direction of momentum then points down
    x, y = np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y
    right = np.bincount(jet, pt * np.sign(x), n) >= 0
    x = np.where(right[jet], x, -x)
    columns, rows = (np.floor((part + HALF_WIDTH) * PIXELS / (2 * HALF_WIDTH)).astype(int) for part in (x, -y))
    inside = (np.minimum(columns, rows) >= 0) & (np.maximum(columns, rows) < PIXELS)
    place = (jet * PIXELS + rows) * PIXELS + columns
    sums = np.bincount(place[inside], pt[inside], n * PIXELS**2).astype(np.float64)
    return sums.reshape(n, PIXELS, PIXELS)
