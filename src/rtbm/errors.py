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


class NormalizerError(TooManyTermsError):
    """The exact normaliser of a machine is out of reach."""

    def __init__(self, cause: TooManyTermsError, n_visible: int, n_hidden: int):
        super().__init__(cause.terms, cause.limit)
        self.args = (
            f"the normaliser of a machine with {n_visible} visible and {n_hidden} hidden units is out of reach: its "
            f"lattice sum would need about {cause.terms:.3g} terms (the limit is {cause.limit}), and the integral over "
            "v is done for at most 3 visible units. score(v), hidden_mean(v) and free_energy(v) need no normaliser, "
            'nor do the solvers "score_matching" and "pcd"; estimate_log_normalizer() gives an estimate with its error',
        )


class SamplingError(RTBMError, RuntimeError):
    """An exact sampler accepts so few of its proposals that it would not finish."""
