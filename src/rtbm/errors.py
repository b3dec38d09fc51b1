"""The library's own exceptions: each message says what was wrong, what was got and what to do."""

from typing import Any


class RTBMError(Exception):
    """Base class of every error that this library raises on purpose."""


class InvalidInputError(RTBMError, ValueError):
    """An argument has the wrong type, shape, symmetry or range."""


class NotNumbersError(InvalidInputError, TypeError):
    """Cells of a table are no numbers, but text or dates, for example."""


class NotPositiveDefiniteError(InvalidInputError):
    """A matrix that must be positive definite is not, to working precision."""


class TooManyTermsError(RTBMError, ArithmeticError):
    """A sum would need more terms than the stated limit.

    Attributes
    ----------
    terms : int
        How many terms the sum would need (an estimate).
    limit : int
        The largest number of terms that is attempted.
    """

    terms: int
    limit: int

    def __init__(self, terms: float, limit: int, message: str | None = None):
        self.terms = int(min(terms, 1e300))
        self.limit = limit
        super().__init__(
            message
            or f"the lattice sum would need about {terms:.3g} terms, and the limit is {limit}: use fewer "
            "coordinates, a larger tolerance, or a diagonal matrix given as a vector of its entries"
        )

    def __reduce__(self) -> Any:  # so that other processes can raise it
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[Exception], arguments: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    """An error as it was before it was pickled."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(state)
    return error


class TooManyNodesError(TooManyTermsError):
    """An integral over visible units would need more grid nodes than the stated limit."""

    def __init__(self, terms: float, limit: int, message: str | None = None):
        message = message or (
            f"the integral over v would need about {terms:.3g} grid nodes, and the limit is {limit}: the finest detail "
            "of this density is too small for its extent; use a smaller box, a larger tolerance, or samples"
        )
        super().__init__(terms, limit, message)


class NormalizerError(TooManyTermsError):
    """The exact normaliser of a machine, or another sum over its hidden states, is out of reach."""

    def __init__(self, terms: float, limit: int, n_visible: int, n_hidden: int, coupling: str):
        message = (
            f"a sum over the states of {n_hidden} hidden units is out of reach: about {terms:.3g} terms, and the limit "
            f"is {limit}. "
        )
        if coupling == "diagonal":
            message += (
                f"The integral over v in its place is done for at most 3 visible units (there are {n_visible}), as "
                "long as a grid resolves them. score_function(v), hidden_mean(v) and free_energy(v) need no "
                "normaliser. Use fewer hidden units, or features"
            )
        else:
            message += (
                "Use fewer hidden units, or a diagonal Q given as a vector, which takes hundreds; if this is a "
                "marginal of a diagonal machine, its log_prob with NaN for the other coordinates needs no such sum"
            )
        super().__init__(terms, limit, message)


class SamplingError(RTBMError, RuntimeError):
    """An exact sampler accepts so few of its proposals that it would not finish."""


class FileError(RTBMError, ValueError):
    """A file cannot be read or written, or does not hold what it should."""


class SpikeWarning(UserWarning):
    """Columns of the data repeat few values, of which a density makes spikes."""
