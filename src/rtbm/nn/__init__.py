"""Modules that own parameters: machines, which return a distribution when called, and theta layers."""

from rtbm.nn.machine import RTBM, MixtureOfRTBMs
from rtbm.nn.theta_layer import ThetaLayer
from rtbm.theta.activation import theta_unit, theta_units

__all__ = ["RTBM", "MixtureOfRTBMs", "ThetaLayer", "theta_unit", "theta_units"]
