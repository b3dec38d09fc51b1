"""Riemann theta functions: log θ̃ and its moments, and the complex θ."""

from rtbm.theta.complex import riemann_theta
from rtbm.theta.plan import ThetaMoments, ThetaPlan
from rtbm.theta.real import log_theta, theta_moments

__all__ = ["ThetaMoments", "ThetaPlan", "log_theta", "riemann_theta", "theta_moments"]
