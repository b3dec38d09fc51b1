"""Riemann theta functions: log θ̃ and its moments, the complex θ, its characteristics, and the modular group."""

from rtbm.theta.characteristics import riemann_theta_characteristics, theta_constants
from rtbm.theta.complex import riemann_theta
from rtbm.theta.jacobi import jacobi_theta
from rtbm.theta.plan import ThetaMoments, ThetaPlan
from rtbm.theta.real import log_theta, theta_moments
from rtbm.theta.siegel import is_siegel_reduced, siegel_reduce

__all__ = [
    "ThetaMoments",
    "ThetaPlan",
    "is_siegel_reduced",
    "jacobi_theta",
    "log_theta",
    "riemann_theta",
    "riemann_theta_characteristics",
    "siegel_reduce",
    "theta_constants",
    "theta_moments",
]
