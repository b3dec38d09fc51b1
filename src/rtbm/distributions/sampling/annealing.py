"""The normaliser of a large diagonal machine by annealed importance sampling."""

import math

import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.distributions.integration.expectations import Estimate
from rtbm.distributions.sampling.lattice import reach_of, sample_integers
from rtbm.parameters import Natural, inverse, map_tensors
from rtbm.theta.plan import ThetaPlan


class GibbsSampler:
    """Block Gibbs sampling of a diagonal phase I machine: all hidden units given v, then v given the hidden units."""

    def __init__(self, natural: Natural):
        with torch.no_grad():
            self.natural = map_tensors(natural, torch.detach)
            self._covariance = inverse(self.natural.T)
            self._root = torch.linalg.cholesky(self._covariance)
            self._reach = int(reach_of(self.natural.Q.cpu().numpy()).max())

    def hidden(self, v: Tensor, generator: torch.Generator | None, strength: float = 1.0) -> Tensor:
        """h (n, Nh) given v (n, Nv), with W multiplied by `strength`."""
        _, W, Q, _, b_h, _ = self.natural
        centre = -(strength * v @ W + b_h) / Q
        return sample_integers(centre, Q, self._reach, generator)[0]

    def visible(self, h: Tensor, generator: torch.Generator | None, strength: float = 1.0) -> Tensor:
        """v (n, Nv) given h (n, Nh), with W multiplied by `strength`."""
        _, W, _, b_v, _, _ = self.natural
        noise = torch.randn(len(h), len(b_v), dtype=h.dtype, device=h.device, generator=generator)
        return noise @ self._root.mT - (strength * h @ W.mT + b_v) @ self._covariance


@torch.no_grad()
def anneal(
    natural: Natural, n_chains: int, n_steps: int, generator: torch.Generator | None, tolerance: float
) -> Estimate:
    """log Z of a diagonal phase I machine, and its standard error.

    The chains start at W = 0, where log Z is known, and reach W in steps that become smaller. A step multiplies the
    weight of a chain by the ratio of the unnormalised densities of the new and the old machine, and then moves the
    chain by a Gibbs step of the new machine. The average weight is Z/Z₀ without bias.
    """
    gibbs = GibbsSampler(natural)
    T, W, Q, b_v, b_h, _ = gibbs.natural
    plan = ThetaPlan(Q, tolerance=tolerance)
    v = gibbs.visible(b_h.new_zeros(n_chains, len(b_h)), generator)  # at W = 0, v does not depend on h
    log_weights = v.new_zeros(n_chains)
    previous = plan.log_theta(b_h.expand(n_chains, -1))
    for step in range(1, n_steps + 1):
        strength = 1 - (1 - step / n_steps) ** 2
        log_weights += plan.log_theta(strength * v @ W + b_h) - previous
        v = gibbs.visible(gibbs.hidden(v, generator, strength), generator, strength)
        previous = plan.log_theta(strength * v @ W + b_h)
    L = torch.linalg.cholesky(T)
    start = 0.5 * len(T) * math.log(TWO_PI) - L.diagonal().log().sum() + plan.log_theta(b_h)
    start += 0.5 * (b_v * torch.cholesky_solve(b_v[:, None], L)[:, 0]).sum()
    weights = (log_weights - log_weights.max()).exp()
    value = start + log_weights.max() + weights.mean().log()
    return Estimate(value, weights.std() / weights.mean() / math.sqrt(n_chains))
