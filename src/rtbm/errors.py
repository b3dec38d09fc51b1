"""The library's own exceptions: each message says what was wrong, what was got and what to do."""


class RTBMError(Exception):
    """Base class of every error that this library raises on purpose."""


class InvalidInputError(RTBMError, ValueError):
    """An argument has the wrong type, shape, symmetry or range."""


class NotPositiveDefiniteError(InvalidInputError):
    """A matrix that must be positive definite is not, to working precision."""


class TooManyTermsError(RTBMError, ArithmeticError):
    """A lattice sum would need more terms than the stated limit.

    Attributes
    ----------
    terms : int
        How many terms the sum would need (an estimate).
    limit : int
        The largest number of terms that is attempted.
    """

    def __init__(self, terms: float, limit: int):
        self.terms = int(min(terms, 1e300))
        self.limit = limit
        super().__init__(
            f"the lattice sum would need about {terms:.3g} terms, and the limit is {limit}: use fewer "
            "coordinates, a larger tolerance, or a diagonal matrix given as a vector of its entries"
        )


class SamplingError(RTBMError, RuntimeError):
    """An exact sampler accepts so few of its proposals that it would not finish."""
