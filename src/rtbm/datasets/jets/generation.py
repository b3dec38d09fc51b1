"""Seeded sets of jet images: collisions, pile-up, calorimeter, clustering, truth and image, one batch at a time."""

from collections.abc import Callable

import numpy as np

from rtbm.common import Floats
from rtbm.datasets.jets.calorimeter import measure
from rtbm.datasets.jets.clustering import find_jets, is_parton, is_w
from rtbm.datasets.jets.events import Particles, collide
from rtbm.datasets.jets.images import PIXELS, draw_images

BATCH = 200
"""Events that are worked on together; another number would give other errors of measurement."""
POOL = 1000
"""Collisions from which pile-up is drawn."""
PROCESSES = ("QCD", "W")
"""By label."""

Advance = Callable[[int], None]
"""Called with the number of images that were just made."""


def make_images(
    n: int,
    label: int,
    seed: int,
    pile_up: float = 0.0,
    pool: Particles | None = None,
    advance: Advance = lambda done: None,
) -> Floats:
    """n images (n, 32, 32) of one label, rounded to half precision; fewer are the first ones of more.

    Pile-up is drawn from a pool of particles, and there is none without it.
    """
    is_true = (is_parton, is_w)[label]
    rng = np.random.default_rng([seed, label])
    images = np.empty((0, PIXELS, PIXELS))
    for events in collide(PROCESSES[label], 10 * seed + 1 + label, BATCH):
        if len(images) >= n:
            break
        particles = events.particles if pool is None else _overlay(events.particles, pool, pile_up, rng)
        jets = find_jets(measure(particles, events.n_events, rng), events.n_events)
        found = draw_images(jets)[is_true(jets, events.partons)].astype(np.float16)
        advance(min(len(found), n - len(images)))
        images = np.concatenate([images, found])
    return images[:n]


def make_pool(seed: int) -> Particles:
    """Particles of ordinary collisions, in the order of the events."""
    return next(collide("pile-up", 10 * seed + 3, POOL)).particles


def _overlay(particles: Particles, pool: Particles, pile_up: float, rng: np.random.Generator) -> Particles:
    """The particles of each event with those of other collisions, which are turned and mirrored at random."""
    events = np.unique(particles.event)
    hosts = np.repeat(events, rng.poisson(pile_up, len(events)))
    guests = rng.integers(POOL, size=len(hosts))
    turn, mirror = rng.uniform(0, 2 * np.pi, len(hosts)), rng.choice((-1.0, 1.0), len(hosts))
    first = np.searchsorted(pool.event, np.arange(POOL + 1))
    lengths = np.diff(first)[guests]
    guest = np.repeat(np.arange(len(guests)), lengths)
    place = np.arange(len(guest)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    added = pool.take(first[guests][guest] + place)
    added = added._replace(event=hosts[guest], phi=added.phi + turn[guest], eta=added.eta * mirror[guest])
    return Particles(*(np.concatenate(pair) for pair in zip(particles, added, strict=True)))
