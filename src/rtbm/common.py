"""Types and constants that many modules share."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]
PHASES = ("I", "II")
"""Phase I has real parameters, phase II an imaginary coupling of visible and hidden units."""
TWO_PI = 2 * math.pi
MAX_LEVELS = 1000
"""A column with more levels than this is no column of categories."""
