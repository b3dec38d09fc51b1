"""Certified values from FLINT, in interval arithmetic."""

import numpy as np
import pytest
from numpy.typing import NDArray

flint = pytest.importorskip("flint", reason="the certified values come from python-flint")
Floats = NDArray[np.float64]


def flint_log_theta(z: Floats, Q: Floats, phase: str = "I") -> float:
    """log θ̃ at one point z (g,), exact for the given floating-point numbers: precision rises until the ball is tiny."""
    previous, precision = flint.ctx.prec, 128
    try:
        while True:
            flint.ctx.prec = precision
            value = _theta(z, Q, phase).log()
            if value.rad() < 1e-14 * max(1, abs(float(value.mid()))):
                return float(value.mid())
            precision *= 4
            if precision > 100_000:
                raise ArithmeticError(f"FLINT does not resolve this value: {value}")
    finally:
        flint.ctx.prec = previous


def _theta(z: Floats, Q: Floats, phase: str) -> "flint.arb":
    two_pi, g = 2 * flint.arb.pi(), len(Q)
    tau = flint.acb_mat(g, g, [flint.acb(0, flint.arb(float(q)) / two_pi) for q in Q.flat])
    factor = flint.acb(0, -1) if phase == "I" else flint.acb(1)
    argument = flint.acb_mat(g, 1, [factor * flint.arb(float(x)) / two_pi for x in z])
    return tau.theta(argument)[0, 0].real
