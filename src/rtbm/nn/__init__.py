"""Modules that own parameters; calling one gives a distribution."""

from rtbm.nn.machines import RTBM, RTBMMixture

__all__ = ["RTBM", "RTBMMixture"]
