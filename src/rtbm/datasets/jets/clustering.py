"""The hardest jet of each event, trimmed, by fastjet; and whether it is what it is meant to be."""

from typing import Any, NamedTuple

import numpy as np

from rtbm.common import Floats
from rtbm.datasets.jets.calorimeter import Towers
from rtbm.datasets.jets.events import PT_RANGE, Partons
from rtbm.datasets.jets.tools import import_tool

JET_RADIUS, SUBJET_RADIUS, SUBJET_SHARE = 1.2, 0.2, 0.05
JET_ETA = 2.0
MATCH_RADIUS = 1.0
"""A W, or a parton, is that near to its jet."""
QUARK_RADIUS, QUARK_PT = 1.2, 30.0


class Jets(NamedTuple):
    """Trimmed jets: for each the number of its event and its direction, and the towers of all of them."""

    event: np.ndarray
    eta: Floats
    phi: Floats
    towers: Towers
    """Their `event` is the place of the jet in this list."""


def find_jets(towers: Towers, n_events: int) -> Jets:
    """The hardest anti-kT jet of each event, trimmed, where it is within the limits of momentum and direction."""
    fastjet, ak = import_tool("fastjet"), import_tool("awkward")
    full = np.flatnonzero(np.bincount(towers.event, minlength=n_events))
    constituents = _cluster(_momenta(towers, len(full)), fastjet.antikt_algorithm, JET_RADIUS)
    hardest = ak.argmax(_pt(constituents), axis=1, keepdims=True)
    inside = constituents[hardest][:, 0]
    subjets = _cluster(inside, fastjet.kt_algorithm, SUBJET_RADIUS)
    kept = subjets[_pt(subjets) > SUBJET_SHARE * _pt(inside[:, np.newaxis])[:, 0]]
    trimmed = ak.flatten(kept, axis=2)
    px, py, pz = (np.asarray(ak.sum(trimmed[name], axis=1)) for name in ("px", "py", "pz"))
    pt, phi = np.hypot(px, py), np.arctan2(py, px)
    eta = np.arcsinh(pz / np.maximum(pt, 1e-12))
    good = np.flatnonzero((pt > PT_RANGE[0]) & (pt < PT_RANGE[1]) & (np.abs(eta) < JET_ETA))
    return Jets(full[good], eta[good], phi[good], _towers(trimmed[good]))


def is_w(jets: Jets, partons: Partons) -> np.ndarray:
    """Whether each jet holds a W boson with both of its quarks."""
    jet = _jet_of(jets, partons)
    near = _distance(jets, jet, partons)
    found = np.zeros(len(jets.event), dtype=bool)
    boson = (jet >= 0) & partons.is_w & (near < MATCH_RADIUS)
    quark = (jet >= 0) & ~partons.is_w & (near < QUARK_RADIUS) & (partons.pt > QUARK_PT)
    for i in np.flatnonzero(boson):
        daughters = quark & (partons.event == partons.event[i]) & (partons.parent == partons.parent[i])
        found[jet[i]] |= daughters.sum() == 2
    return found


def is_parton(jets: Jets, partons: Partons) -> np.ndarray:
    """Whether each jet is that of a parton of the hard process."""
    jet = _jet_of(jets, partons)
    near = (jet >= 0) & ~partons.is_w & (_distance(jets, jet, partons) < MATCH_RADIUS)
    return np.bincount(jet[near], minlength=len(jets.event)) > 0


def _jet_of(jets: Jets, partons: Partons) -> np.ndarray:
    """The place of the jet in the event of each parton, or -1."""
    place = np.full(int(partons.event.max(initial=-1)) + 1, -1)
    place[jets.event] = np.arange(len(jets.event))
    return place[partons.event]


def _distance(jets: Jets, jet: np.ndarray, partons: Partons) -> Floats:
    turn = (partons.phi - jets.phi[jet] + np.pi) % (2 * np.pi) - np.pi
    return np.hypot(partons.eta - jets.eta[jet], turn)


def _momenta(towers: Towers, n_events: int) -> Any:
    """Towers as four-momenta, event by event."""
    ak = import_tool("awkward")
    momenta = {
        "px": towers.pt * np.cos(towers.phi),
        "py": towers.pt * np.sin(towers.phi),
        "pz": towers.pt * np.sinh(towers.eta),
        "E": towers.pt * np.cosh(towers.eta),
    }
    counts = np.bincount(towers.event)
    return ak.unflatten(ak.zip(momenta, with_name="Momentum4D"), counts[counts > 0])


def _cluster(momenta: Any, algorithm: Any, radius: float) -> Any:
    """The constituents of all jets of all events."""
    fastjet = import_tool("fastjet")
    return fastjet.ClusterSequence(momenta, fastjet.JetDefinition(algorithm, radius)).constituents()


def _pt(constituents: Any) -> Any:
    """The transverse momentum of the sum over the last axis."""
    ak = import_tool("awkward")
    return np.hypot(ak.sum(constituents.px, axis=-1), ak.sum(constituents.py, axis=-1))


def _towers(momenta: Any) -> Towers:
    ak = import_tool("awkward")
    counts, flat = np.asarray(ak.num(momenta)), ak.flatten(momenta)
    px, py, pz = (np.asarray(flat[name]) for name in ("px", "py", "pz"))
    pt = np.hypot(px, py)
    return Towers(np.repeat(np.arange(len(counts)), counts), pt, np.arcsinh(pz / pt), np.arctan2(py, px))
