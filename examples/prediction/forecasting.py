"""
Forecast a series with intervals and paths
==========================================

Accidental deaths in the US were counted every month, and have a season. :class:`rtbm.RTBMForecaster` describes what
comes next by a distribution, from which it draws paths: futures that hang together, each as likely as the others.
"""

import matplotlib.pyplot as plt
import numpy as np

from rtbm import RTBMForecaster
from rtbm.plotting import DARK, GREY, LIGHT, WARM

# %%
# The series
# ----------
#
# Deaths in thousands, from January 1973 to December 1978. The last year is kept to judge the forecast.

deaths = np.array(
    [
        *(9.007, 8.106, 8.928, 9.137, 10.017, 10.826, 11.317, 10.744, 9.713, 9.938, 9.161, 8.927),
        *(7.750, 6.981, 8.038, 8.422, 8.714, 9.512, 10.120, 9.823, 8.743, 9.129, 8.710, 8.680),
        *(8.162, 7.306, 8.124, 7.870, 9.387, 9.556, 10.093, 9.620, 8.285, 8.466, 8.160, 8.034),
        *(7.717, 7.461, 7.767, 7.925, 8.623, 8.945, 10.078, 9.179, 8.037, 8.488, 7.874, 8.647),
        *(7.792, 6.957, 7.726, 8.106, 8.890, 9.299, 10.625, 9.302, 8.314, 8.850, 8.265, 8.796),
        *(7.836, 6.892, 7.791, 8.192, 9.115, 9.434, 10.484, 9.827, 9.110, 9.070, 8.633, 9.240),
    ]
)
past, future = deaths[:60], deaths[60:]

# %%
# Fit and forecast
# ----------------
#
# The period is found, and could be given as ``periods=(12,)``. Forecasts from earlier months tell which structures suit
# the series; the scores are continuous ranked probability scores, and small ones are good.

model = RTBMForecaster(random_state=0).fit(past)
print("periods:", model.periods_, " season by theta units:", model.uses_theta_)
for name, score in sorted(model.scores_.items(), key=lambda item: item[1]):
    print(f"{name:32} {score:.2f} {'kept' if name in model.members_ else ''}")

median, interval = model.predict(12), model.predict_interval(12, coverage=0.9)
inside = ((interval[:, 0] < future) & (future < interval[:, 1])).sum()
print(f"mean absolute error {np.abs(median - future).mean():.2f}, {inside} of 12 months inside the 90 % interval")
print(f"last year again: mean absolute error {np.abs(past[-12:] - future).mean():.2f}")

# %%
# Intervals and paths
# -------------------
#
# An interval speaks about one month. Questions on several months need paths.

paths = model.sample_paths(12, 500, random_state=0)
months, ahead = 1973 + np.arange(72) / 12, 1978 + np.arange(12) / 12
fig, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
for ax in axes:
    ax.plot(months[36:60], past[36:], color=DARK, lw=1.2, label="past")
    ax.plot(ahead, future, "o", ms=4, color="black", zorder=3, label="what came")
    ax.set_xticks(range(1976, 1980))
    ax.set_xlabel("year")
axes[0].fill_between(ahead, *interval.T, color=LIGHT, alpha=0.4, lw=0, label="90 % interval")
axes[0].plot(ahead, median, color=WARM, label="median")
axes[1].plot(ahead, paths[:30].T, color=GREY, lw=0.6)
axes[0].set_ylabel("deaths in thousands")
axes[0].set_ylim(top=12.4)
axes[0].legend(fontsize=9, ncols=2, loc="upper left")
axes[1].set_title("thirty paths", fontsize=10)
plt.show()

# %%
# The distribution of the sum over the year, and of its worst month:

total, worst = paths.sum(axis=1), paths.max(axis=1)
print(
    f"deaths in the year: {np.quantile(total, 0.05):.0f} to {np.quantile(total, 0.95):.0f}, it was {future.sum():.0f}"
)
print(f"worst month: {np.quantile(worst, 0.05):.1f} to {np.quantile(worst, 0.95):.1f}, it was {future.max():.1f}")
