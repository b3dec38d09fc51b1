"""What is fitted: machines with dense Q, and mixtures of them."""

from rtbm.training.families.dense import Density, Family, Prior

__all__ = ["Density", "Family", "Prior", "make_family"]


def make_family(n_visible: int, n_hidden: int, *, n_components: int = 1, phase: str = "I") -> Family:
    """The family of machines of given sizes: see `Family`.

    Examples
    --------
    >>> make_family(1, 2, n_components=3).n_parameters
    30
    """
    return Family(n_visible, n_hidden, n_components=n_components, phase=phase)
