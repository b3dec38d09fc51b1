"""Modules that own parameters: machines and heads, which return a distribution when called, and theta layers."""

from rtbm.nn.activation import theta_unit, theta_units
from rtbm.nn.head import RTBMHead
from rtbm.nn.machine import RTBM, MixtureOfRTBMs
from rtbm.nn.theta_layer import ThetaLayer

__all__ = ["RTBM", "MixtureOfRTBMs", "RTBMHead", "ThetaLayer", "theta_unit", "theta_units"]
