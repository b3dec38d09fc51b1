"""
Respect the bounds of data
==========================

Many quantities cannot leave an interval: waiting times are positive, shares lie between 0 and 1. A density that does
not know this puts probability outside, and bends down towards the bound. The argument ``bounds`` prevents both.
Without it, a few percent of the probability lie outside in this example; with it, none.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

from rtbm import RTBMDensity
from rtbm.plotting import DARK, GREY, WARM

# %%
# Two samples have a known density: 1,000 positive values of a gamma distribution, and 1,000 shares of a beta
# distribution, which has peaks at 0 and at 1. For each of them a machine with three hidden units is fitted without
# and with bounds. ``None`` in place of a bound means that the values may go as far as they like on that side.

cases = {
    "positive values": (stats.gamma(1.5), (0, None)),
    "shares": (stats.beta(0.6, 0.8), (0, 1)),
}
samples, fits = {}, {}
for name, (truth, bounds) in cases.items():
    X = truth.rvs((1000, 1), random_state=0)
    samples[name] = X
    fits[name] = [RTBMDensity(3, bounds=ends, random_state=0).fit(X) for ends in (None, bounds)]

# %%
# The bounded fit describes a transformed value: the logarithm of a positive value, and the logit of a share. The
# density of the value itself follows by an exact change of variables, so it can rise up to the bound.

views = ((-1, 7, 0.75), (-0.25, 1.25, 3.2))
fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for ax, (name, (truth, bounds)), (low, high, top) in zip(axes, cases.items(), views, strict=True):
    # the lines change next to a bound, so values on both sides of it are drawn
    edges = [end + step for end in bounds if end is not None for step in (-1e-9, 1e-9)]
    v = np.sort(np.append(np.linspace(low, high, 800), edges))
    inside = truth.pdf(v) > 0
    ax.hist(samples[name][:, 0], 50, density=True, color=GREY, label="sample")
    ax.plot(v[inside], truth.pdf(v[inside]), color="black", lw=1, ls="--", label="true density")
    for fit, colour, label in zip(fits[name], (DARK, WARM), ("without bounds", "with bounds"), strict=True):
        ax.plot(v, np.exp(fit.score_samples(v[:, None])), color=colour, lw=2, label=label)
    ax.set(title=name.capitalize(), xlabel="value", xlim=(low, high), ylim=(0, top))
axes[0].set_ylabel("density")
axes[0].legend(frameon=False)
plt.show()

# %%
# The probability outside the bounds comes from the distribution function. The log-likelihood of 10,000 new values
# shows what the bounds gain.

print(f"{'':17}{'':16}{'outside':>8}{'log-likelihood':>16}")
for name, (truth, bounds) in cases.items():
    new = truth.rvs((10_000, 1), random_state=1)
    for fit, label in zip(fits[name], ("without bounds", "with bounds"), strict=True):
        below = fit.cdf([[bounds[0]]])[0]
        above = 0.0 if bounds[1] is None else 1 - fit.cdf([[bounds[1]]])[0]
        print(f"{name:17}{label:16}{100 * (below + above):6.1f} %{fit.score(new):16.3f}")
    print(f"{name:17}{'true density':16}{0:6.1f} %{truth.logpdf(new).mean():16.3f}")

# %%
# Without bounds, a few percent of the probability lie where no value can be. With bounds, none does, new values have
# a higher likelihood, and the fit comes close to the true density. The fit to the positive values is uneven right
# beside zero, because few values lie there and the logarithm stretches them far apart.
