"""
See what hidden units do
========================

A Riemann-Theta Boltzmann machine has real visible units :math:`v` and integer hidden units :math:`h`. Its density is
a sum of Gaussians, one for each state of the hidden units. The first picture shows machines with one, two and three
hidden units and their Gaussians. The second picture changes the parameters :math:`W` and :math:`Q` one at a time, and
shows the expectation of the hidden unit, given the value of the visible one.
"""

import matplotlib.pyplot as plt
import numpy as np

from rtbm import DiscreteGaussian, RTBMDistribution
from rtbm.plotting import DARK, LIGHT, WARM, plot_density

# %%
# The hidden units have the probability :math:`P(h) \propto \exp(-\frac12 h^\top A h - a^\top h)` on the integers.
# Given :math:`h`, the visible unit is normal with mean :math:`\mu + Fh` and a variance that does not depend on
# :math:`h`. Here ``A`` is 10 for each unit, and ``a`` is near -5, so that nearly all of the probability belongs to
# states with units 0 and 1. One unit then gives two Gaussians, two units give four, and three give eight. Each unit
# adds its step, which is its column of :math:`F`, to the mean.

steps, a = [3.2, 1.5, 0.7], [-4.4, -4.7, -5.3]
fig, axes = plt.subplots(1, 3, figsize=(9, 3.4), layout="constrained")
for n, ax in zip((1, 2, 3), axes, strict=True):
    machine = RTBMDistribution.from_lattice(10 * np.eye(n), a[:n], [steps[:n]], [-sum(steps[:n]) / 2], [[0.16]])
    _, log_prob = DiscreteGaussian(machine.lattice.A, machine.lattice.a).table()
    print(f"hidden units: {n}, states with more than 1 % of the probability: {int((log_prob.exp() > 0.01).sum())}")
    plot_density(machine, ax=ax, legend=False)
    ax.set(title=f"{n} hidden unit{'s' * (n > 1)}", xlabel="v", ylabel="")
axes[0].set_ylabel("density P(v)")
handles = axes[2].get_legend_handles_labels()[0]
fig.legend(handles, ["P(v)", "Gaussian of one state h"], loc="outside lower center", ncols=2, frameon=False)
plt.show()

# %%
# The paper writes the same machine with the energy
#
# .. math:: E(v, h) = \tfrac12 v^\top T v + \tfrac12 h^\top Q h + v^\top W h + b_v^\top v + b_h^\top h.
#
# The variance of each Gaussian is :math:`T^{-1}`. Here there is one unit of each kind, :math:`T = 4`, and the biases
# are zero. In the left column only :math:`W` changes. In the right column only :math:`Q` changes. In both columns
# :math:`Q - W^2/T` has to be positive: the smaller it is, the more states count.

columns = {"W": [(-2.0, 11.0), (-4.0, 11.0), (-6.0, 11.0)], "Q": [(-6.0, 9.5), (-6.0, 11.0), (-6.0, 14.0)]}
v = np.linspace(-4, 4, 800)[:, None]
fig, axes = plt.subplots(2, 2, figsize=(9, 5.6), sharex=True, sharey="row", layout="constrained")
print("   W     Q  distance of means  share of h = 0")
for column, (name, pairs) in zip(axes.T, columns.items(), strict=True):
    for (W, Q), colour in zip(pairs, (LIGHT, WARM, DARK), strict=True):
        machine = RTBMDistribution(T=[[4.0]], W=[[W]], Q=[[Q]], b_v=[0.0], b_h=[0.0])
        label = f"{name} = {W if name == 'W' else Q:g}"
        column[0].plot(v, machine.log_prob(v).exp(), color=colour, lw=2, label=label)
        column[1].plot(v, machine.hidden_mean(v), color=colour, lw=2, label=label)
        distance, share = machine.lattice.F.item(), machine.hidden_log_prob([0.0]).exp().item()
        print(f"{W:4g}{Q:6g}{distance:19.1f}{share:16.2f}")
    column[0].legend(frameon=False)
    column[1].set_xlabel("v")
axes[0, 0].set(title="W changes, Q = 11", ylabel="density P(v)")
axes[0, 1].set(title="Q changes, W = -6")
axes[1, 0].set(ylabel="expectation E(h|v)")
plt.show()

# %%
# A :math:`W` of larger size moves the Gaussians apart and lets more of them count. A larger :math:`Q` leaves the
# means where they are, and gives more weight to :math:`h = 0`. The expectation :math:`E(h \mid v)` is a staircase.
# Its steps are :math:`Q/|W|` wide. With several units, and with :math:`W` and :math:`Q` learned, it is the activation
# function of the library's networks.
