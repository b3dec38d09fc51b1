"""The numbers that the backends of theta share."""

import math

import numpy as np

TWO_PI_PARTS = (6.2831853069365025, 2.4308402025215864e-10, 8.089064995183803e-21)
"""2π as a sum that is exact to 1e-36. Products of the first two parts with integers below 2^20 do not round. With
longer parts they would, and arguments far from zero would lose digits."""

SIN_PI = np.array([(-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(11)])
"""Taylor coefficients of sin(πt)/t in t². For |t| ≤ ½ eleven terms reach the last digit; fewer would not."""
COS_PI = np.array([(-1) ** k * math.pi ** (2 * k) / math.factorial(2 * k) for k in range(11)])
"""Taylor coefficients of cos(πt) in t², as many as of the sine."""

SERIES_LIMIT = 4 * math.pi
"""One-dimensional sums whose terms have width a below this are summed as cosines, the others as exponentials (see
`unit.torch`). At 4π both sums are cut off at 4e-17 of their value; elsewhere one of them would need more terms."""
N_COSINES = 4
"""Cosines in such a sum. A fifth would add less than 4e-17; with three the error is 4e-11."""
N_EXPONENTIALS = 2
"""Exponentials on each side of the largest term. A third would add less than 4e-17; with one the error is 4e-6."""
