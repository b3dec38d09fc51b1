"""Machines with diagonal Q: their starts and their prior."""

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.parameters import Free, log_cholesky, pack
from rtbm.training.families.base import Family, Prior

RIPPLES = 0.2
"""The prior on the ripples of diagonal machines, relative to that on the covariance of dense ones. More is smoother."""
GAUSSIAN_Q = 60.0
"""With this q, ripples are below 1e-12."""


class Diagonal(Family):
    """One machine with diagonal Q, or a mixture of them; arguments as in `Family`. It may have hundreds of units."""

    coupling: ClassVar[str] = "diagonal"
    has_tables: ClassVar[bool] = False

    def start(self, x: Floats, weights: Floats, index: int, rng: np.random.Generator, binary: bool) -> Tensor:
        """The Gaussian of the data, with weak ripples of random directions, frequencies and phases."""
        directions = rng.standard_normal((self.n_visible, self.n_hidden))
        directions /= np.linalg.norm(directions, axis=0)
        frequencies = rng.uniform(0.5, 4.0, self.n_hidden)
        q = rng.uniform(4.0, 12.0, self.n_hidden) + 2 * math.log(self.n_hidden)
        parts = np.log(q), rng.uniform(0.0, 1.0, self.n_hidden), directions * frequencies, np.zeros(self.n_visible)
        scale = log_cholesky(torch.eye(self.n_visible, dtype=torch.float64))
        log_q, turns, W, mean = (torch.from_numpy(part) for part in parts)
        return pack(Free(log_q, turns, W, mean, scale, "diagonal"))

    def penalty(self, vector: Floats, prior: Prior) -> tuple[float, Floats]:
        """The penalty of a member, and its derivative in the vector.

        Ripples have amplitudes of order exp(−q/2) and frequencies w; with s the widths of the data along the axes::

            penalty = RIPPLES strength Σ_j exp(−q_j/2)(1 + Σ_i s_i² w_ij²)
        """
        d, g, size = self.n_visible, self.n_hidden, self.n_machine_parameters
        value, gradient = 0.0, np.zeros(len(vector))
        for begin in range(0, self.n_components * size, size):
            q, W = np.exp(vector[begin : begin + g]), vector[begin + 2 * g : begin + (2 + d) * g].reshape(d, g)
            amplitude = RIPPLES * prior.strength * np.exp(-0.5 * q)
            energy = 1 + prior.widths**2 @ W**2
            value += float(amplitude @ energy)
            gradient[begin : begin + g] -= 0.5 * q * amplitude * energy
            slope = 2 * amplitude * prior.widths[:, None] ** 2 * W
            gradient[begin + 2 * g : begin + (2 + d) * g] += slope.ravel()
        return value, gradient

    def _move(self, vector: Tensor, M: Tensor, c: Tensor) -> Tensor:
        return pack(self.machine(vector).affine(M, c).free)

    def _gaussian_machine(self) -> Tensor:
        """Units whose ripples vanish, along the axes in turn."""
        unit = torch.arange(self.n_hidden)
        W = torch.zeros(self.n_visible, self.n_hidden, dtype=torch.float64)
        W[unit % self.n_visible, unit] = 1.0
        log_q = torch.full((self.n_hidden,), math.log(GAUSSIAN_Q), dtype=torch.float64)
        scale = log_cholesky(torch.eye(self.n_visible, dtype=torch.float64))
        return pack(Free(log_q, 0 * log_q, W, W.new_zeros(self.n_visible), scale, "diagonal"))
