"""Modules that own parameters: machines, whose call gives a distribution, and layers of their expectations."""

from rtbm.nn.activation import theta_unit, theta_units
from rtbm.nn.machines import RTBM, RTBMMixture
from rtbm.nn.theta_layer import ThetaLayer

__all__ = ["RTBM", "RTBMMixture", "ThetaLayer", "theta_unit", "theta_units"]
