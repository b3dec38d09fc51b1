"""The simulation of jet images, piece by piece, and the sample that it made."""

import importlib.util
import platform
from importlib.metadata import version
from importlib.resources import files

import numpy as np
import pytest

from experiments.paper import jet_simulation as simulation
from experiments.paper.jet_simulation import Events, Jets, Particles, Partons, Towers
from rtbm import InvalidInputError, datasets

jets = datasets.jets
needs_generator = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("pythia8mc", "fastjet")), reason="needs the extra `jets`"
)


def particles(pt, eta, phi, charge=0.0, is_light=True, event=0):
    pt, eta, phi, charge, is_light, event = (
        part.copy() for part in np.broadcast_arrays(np.atleast_1d(pt), eta, phi, charge, is_light, event)
    )
    return Particles(event, pt, eta, phi, pt * np.cosh(eta), charge, is_light)


# Events and calorimeter


def test_a_photon_is_measured_where_it_goes():
    rng = np.random.default_rng(0)
    n = 2000
    towers = simulation.measure(particles(np.full(n, 50.0), 0.43, 2.0, event=np.arange(n)), n, rng)
    assert len(towers.pt) == n
    assert np.allclose(towers.eta, 0.45)
    assert np.abs(towers.phi - 2.0).max() < np.pi / 36
    energy = towers.pt * np.cosh(towers.eta)
    true = 50 * np.cosh(0.43)
    sigma = np.sqrt((0.007 * true) ** 2 + 0.01 * true + 0.09)
    assert abs(energy.mean() - true) < 5 * sigma / np.sqrt(n)
    assert abs(energy.std() / sigma - 1) < 0.1


def test_soft_hadrons_stay_below_threshold():
    rng = np.random.default_rng(0)
    n = 500
    towers = simulation.measure(particles(np.full(n, 0.5), 0.0, 0.0, is_light=False, event=np.arange(n)), n, rng)
    assert len(towers.pt) < 0.1 * n


def test_charged_particles_bend_and_slow_ones_never_arrive():
    rng = np.random.default_rng(0)
    fast = simulation.bend(particles([2.0, 2.0, 2.0], 0.0, 1.0, charge=np.array([1.0, -1.0, 0.0])))
    turn = np.arcsin(0.345 / 2.0)
    assert np.allclose(fast.phi, [1 - turn, 1 + turn, 1.0])
    assert not len(simulation.measure(particles(0.3, 0.0, 0.0, charge=1.0), 1, rng).pt)


def test_pile_up_adds_other_events_turned_and_mirrored():
    host = particles(np.full(200, 100.0), 0.0, 0.0, event=np.arange(200))
    pool = particles([1.0, 2.0, 3.0], [0.5, 1.0, 1.5], 0.0, event=np.array([0, 2, 2]))  # events 1 and 3 left nothing
    mixed = simulation.add_pile_up(host, Events(4, pool, partons([])), 10.0, np.random.default_rng(0))
    added = mixed.take(np.arange(200, len(mixed.pt)))
    counts = {pt: int((added.pt == pt).sum()) for pt in (1.0, 2.0, 3.0)}
    assert counts[2.0] == counts[3.0]
    assert all(abs(count - 500) < 120 for count in counts.values())
    assert set(np.abs(added.eta)) == {0.5, 1.0, 1.5}
    assert 0.4 < (added.eta > 0).mean() < 0.6
    assert added.event.max() == 199


# Clustering


def test_jets_are_trimmed_and_selected():
    pytest.importorskip("fastjet")
    hard = [[320.0, 20.0, 5.0, 200.0], [0.0, 0.5, 0.9, 0.0], [0.0, 0.2, 0.3, 2.5]]
    soft = [[200.0, 20.0], [0.0, 0.5], [0.0, 0.0]]
    towers = Towers(np.array([0, 0, 0, 0, 2, 2]), *(np.concatenate([a, b]) for a, b in zip(hard, soft, strict=True)))
    found = simulation.find_jets(towers, 3)
    assert found.event.tolist() == [0]  # event 1 is empty, the jet of event 2 too soft
    assert np.allclose(np.sort(found.towers.pt), [20.0, 320.0])  # 5 GeV is less than 5 %, 200 GeV too far away
    assert np.allclose(found.towers.eta, [0.0, 0.5]) or np.allclose(found.towers.eta, [0.5, 0.0])


def partons(rows):
    """(event, pt, eta, phi, is_w, parent)."""
    columns = np.array(rows, dtype=float).reshape(-1, 6).T
    return Partons(columns[0].astype(int), *columns[1:4], columns[4].astype(bool), columns[5].astype(int))


def test_truth_needs_a_w_and_both_its_quarks():
    empty = Towers(*(np.empty(0) for _ in range(4)))
    found = Jets(np.array([0, 1, 2, 3]), np.zeros(4), np.full(4, 3.1), empty)
    rows = []
    for event, (w_phi, pt, eta) in enumerate([(-3.1, 100, 0.5), (-3.1, 20, 0.5), (-3.1, 100, 1.5), (1.0, 100, 0.5)]):
        rows.append((event, 350, 0.0, w_phi, 1, 7))
        rows += [(event, 200, 0.1, 3.0, 0, 7), (event, pt, eta, 3.0, 0, 7), (event, 200, 0.0, 3.0, 0, 8)]
    assert simulation.is_w(found, partons(rows)).tolist() == [True, False, False, False]
    assert simulation.is_parton(found, partons(rows)).tolist() == [True, True, True, True]
    far = partons([(e, 200, 1.5, 3.1, 0, 1) for e in range(4)])
    assert not simulation.is_parton(found, far).any()


# Images


def test_images_do_not_depend_on_how_a_jet_lies():
    rng = np.random.default_rng(0)
    pt, radius, angle = rng.uniform(5, 50, 12), rng.uniform(0, 1, 12), rng.uniform(0, 2 * np.pi, 12)

    def picture(turn, mirror, eta, phi):
        x, y = radius * np.cos(mirror * angle + turn), radius * np.sin(mirror * angle + turn)
        towers = Towers(np.zeros(12, dtype=int), pt, eta + x, phi + y)
        return simulation.draw_images(Jets(np.array([0]), np.array([eta]), np.array([phi]), towers))[0]

    first = picture(0.0, 1.0, 0.0, 0.0)
    assert np.isclose(first.sum(), pt.sum())
    for arguments in ((0.7, 1.0, 0.3, 3.0), (-2.0, -1.0, -1.0, -3.1)):
        assert np.allclose(picture(*arguments), first)


def test_a_jet_with_one_tower_is_one_pixel():
    towers = Towers(np.array([0]), np.array([333.0]), np.array([0.1]), np.array([0.2]))
    picture = simulation.draw_images(Jets(np.array([0]), np.array([0.1]), np.array([0.2]), towers))[0]
    assert picture.max() == 333.0
    assert (picture > 0).sum() == 1


# The whole chain


@needs_generator
def test_generated_images_repeat_and_are_those_of_the_sample():
    n = 24
    first = [simulation.make_images(n, label, 1) for label in (0, 1)]
    assert np.array_equal(first[1], simulation.make_images(n, 1, 1))
    order = np.random.default_rng(1).permutation(7500)
    made = jets.load().images[np.argsort(order)]
    same = [(found == made[3750 * label :][:n]).all(axis=(1, 2)).mean() for label, found in enumerate(first)]
    with files("rtbm.datasets").joinpath(jets.SAMPLE).open("rb") as file, np.load(file) as sample:
        made_with = str(sample["made_with"])
    here = f"{platform.machine()}, pythia8mc {version('pythia8mc')}, fastjet {version('fastjet')}"
    if made_with == here:  # elsewhere other events come out of the same seeds
        assert min(same) > 0.9
    assert all(np.isclose(found.sum(axis=(1, 2)), 350, atol=100).mean() > 0.9 for found in first)


@needs_generator
def test_generate_mixes_both_labels_and_takes_pile_up():
    done = []
    sample = simulation.generate(6, seed=2, pile_up=5.0, advance=done.append)
    assert sample.images.shape == (6, 32, 32)
    assert sorted(sample.labels) == [0, 0, 0, 1, 1, 1]
    assert sum(done) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 5}, "n must be even"),
        ({"n": 0}, "n must be an integer"),
        ({"n": 2, "seed": -1}, "seed must be"),
        ({"n": 2, "seed": 90_000_000}, "seed must be at most"),
        ({"n": 2, "pile_up": -1.0}, "pile_up must be"),
        ({"n": 2, "pile_up": "many"}, "pile_up must be"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        simulation.generate(**arguments)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pythia8mc", None)
    with pytest.raises(ImportError, match=r"pythia8mc is missing.*\.\[jets\]"):
        simulation.generate(2)
