"""
A density inside a torch model
==============================

``rtbm.nn.RTBM`` is a torch module that returns a distribution with an exact ``log_prob``, differentiable in its
parameters and in the data. So it can be trained by Adam together with other layers. Here it is the base density of
a small flow: an invertible network bends the plane, and the machine describes the bent points. The same network
with a normal base density serves as comparison. Last, we differentiate the density with respect to the data.
"""

# %%
# The network consists of two coupling layers. Each moves and scales one coordinate by functions of the other, so
# the change of volume is known. By the change of variables, the density of a point is the density of its code times
# this change.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from torch import nn

from rtbm.nn import RTBM
from rtbm.plotting import DARK, GREY, WARM

points = torch.from_numpy(make_moons(1000, noise=0.1, random_state=0)[0])
points = (points - points.mean(dim=0)) / points.std(dim=0)
train, test = points[:400], points[400:]


class Flow(nn.Module):
    """Two coupling layers in front of a module that returns the base density."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2)) for _ in range(2))
        for net in self.nets:  # at first the network leaves the points where they are
            nn.init.zeros_(net[2].weight)
            nn.init.zeros_(net[2].bias)
        self.double()

    def log_prob(self, x):
        """Log-density (n,) of points (n, 2)."""
        log_volume = 0
        for net in self.nets:
            shift, scale = net(x[:, :1]).mT
            x = torch.stack([x[:, 1] * torch.tanh(scale).exp() + shift, x[:, 0]], dim=1)  # and swap coordinates
            log_volume = log_volume + torch.tanh(scale)
        return self.base().log_prob(x) + log_volume


# %%
# The normal base has no parameters, because the network can move and scale by itself. The machine has 20. Any value
# of them is a machine, so Adam needs no constraints.


class Normal(nn.Module):
    """The standard normal distribution of the plane, as a module without parameters."""

    def forward(self):
        """The distribution."""
        return torch.distributions.MultivariateNormal(torch.zeros(2).double(), torch.eye(2).double())


torch.manual_seed(0)
flows = {"normal base": Flow(Normal()), "machine as base": Flow(RTBM(2, 3, generator=torch.Generator().manual_seed(0)))}
losses = {name: [] for name in flows}
for name, flow in flows.items():
    optimizer = torch.optim.Adam(flow.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 250)
    for _ in range(250):
        optimizer.zero_grad()
        loss = -flow.log_prob(train).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses[name].append(loss.item())

line = torch.linspace(-2.6, 2.6, 140, dtype=torch.float64)
plane = torch.cartesian_prod(line, line)
fig, axes = plt.subplots(1, 3, figsize=(8, 2.9), layout="constrained")
for ax, (name, flow) in zip(axes, flows.items(), strict=False):
    with torch.no_grad():
        density = flow.log_prob(plane).exp().reshape(140, 140).mT.numpy()
        score = float(flow.log_prob(test).mean())
    ax.contourf(line, line, density, levels=12, cmap="Blues")
    ax.plot(*test.mT, ".", ms=1.5, color=WARM)
    ax.set(title=name, xlabel="x₁", ylabel="x₂")
    n_parameters = sum(parameter.numel() for parameter in flow.parameters())
    print(f"{name}: {n_parameters} parameters, mean log-likelihood of new points {score:.2f}")
for (name, values), colour in zip(losses.items(), (GREY, DARK), strict=True):
    axes[2].plot(values, color=colour, label=name)
axes[2].set(title="training", xlabel="step of Adam", ylabel="negative log-likelihood")
axes[2].legend()
plt.show()

# %%
# With the machine, new points have a higher likelihood. A machine has several centres, so the two moons stay apart;
# the network must stretch the one centre of the normal base over both. The size of the difference depends on the
# initial values: with random instead of zero last layers in the network, both flows ended lower and within 0.1 of
# each other.
#
# **The gradient with respect to the data.** It points to where the density grows, and is what sampling by Langevin
# dynamics or score matching needs. We compare it with central differences.

flow = flows["machine as base"].requires_grad_(False)
coarse = torch.linspace(-2.2, 2.2, 18, dtype=torch.float64)
x = torch.cartesian_prod(coarse, coarse).requires_grad_()
(gradient,) = torch.autograd.grad(flow.log_prob(x).sum(), x)
step = 1e-5 * torch.eye(2, dtype=torch.float64)
differences = torch.stack([(flow.log_prob(x + e) - flow.log_prob(x - e)) / 2e-5 for e in step], dim=1).detach()
print(f"gradients up to {float(gradient.abs().max()):.0f}, differences from them up to", end=" ")
print(f"{float((gradient - differences).abs().max()):.0e}")
x, arrows = x.detach(), gradient / (1 + gradient.norm(dim=1, keepdim=True))
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.contourf(line, line, density, levels=12, cmap="Blues")
ax.quiver(*x.mT, *arrows.mT, color=DARK, width=0.003)
ax.set(title="gradient of log P (lengths compressed)", xlabel="x₁", ylabel="x₂")
plt.show()
