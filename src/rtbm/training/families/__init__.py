"""The families of densities that are fitted: one class for each kind of machine."""

from typing import Any

from rtbm.training.families.base import Density, Family, Prior
from rtbm.training.families.dense import Dense
from rtbm.training.families.diagonal import Diagonal
from rtbm.validation import check_choice

FAMILIES: dict[str, type[Family]] = {family.coupling: family for family in (Dense, Diagonal)}
"""The families by the name of their coupling."""

__all__ = ["FAMILIES", "Dense", "Density", "Diagonal", "Family", "Prior", "family_of", "make_family"]


def family_of(coupling: Any) -> type[Family]:
    """The family of a coupling."""
    return FAMILIES[check_choice(coupling, "coupling", tuple(FAMILIES))]


def make_family(
    n_visible: int, n_hidden: int, *, n_components: int = 1, coupling: str = "dense", phase: str = "I"
) -> Family:
    """The family of machines of given sizes: see `Family`.

    Examples
    --------
    >>> make_family(1, 2, n_components=3).n_parameters
    30
    """
    return family_of(coupling)(n_visible, n_hidden, n_components=n_components, phase=phase)
