"""The base class of estimators that notebooks show with a picture and a summary."""

import base64
import io
import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from rtbm.errors import RTBMError
from rtbm.markup import html_table

PICTURED = 6
"""Most columns of numbers whose densities a notebook draws. Models with more show their summary alone."""
PANELS_IN_A_ROW, LONGEST_LABEL = 3, 26


class Estimator(BaseEstimator):
    """An estimator of scikit-learn that notebooks show, once it is fitted, with a picture and a summary.

    The picture has the density of each column of numbers, if there are at most six, or the activations of a network.
    `sklearn.set_config(display="text")` turns all of it off, as for other estimators.

    Examples
    --------
    >>> from rtbm import RTBMDensity, datasets
    >>> model = RTBMDensity(n_hidden=1, n_init=1, random_state=0).fit(datasets.gamma.sample(100))
    >>> "1 hidden unit" in model._repr_html_()
    True
    """

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_inner()
        return bundle

    def _repr_html_inner(self) -> str:
        html: str = super()._repr_html_inner()
        return html + _fitted_html(getattr(self, "density_", self))


def _fitted_html(model: Any) -> str:
    """The picture and the summary of a fitted density or network; nothing before the fit."""
    if not hasattr(model, "summary_"):
        return ""
    from rtbm.output import summary_rows  # which imports rich

    parts = [_picture(model), html_table(summary_rows(model))]
    return f'<div style="display: flex; flex-wrap: wrap; gap: 1em; align-items: start">{"".join(parts)}</div>'


def _picture(model: Any) -> str:
    """The picture of a model as an image in HTML; nothing if there is none."""
    from matplotlib.figure import Figure

    figure, content = Figure(layout="constrained"), io.BytesIO()
    draw = _draw_density if hasattr(model, "distribution_") else _draw_network
    try:
        with warnings.catch_warnings(action="ignore"):  # of letters that a font lacks
            if not draw(model, figure):
                return ""
            figure.savefig(content, format="png", dpi=110)
    except RTBMError:  # marginals out of reach, or a network without theta layers
        return ""
    return (
        f'<img alt="picture of the model" src="data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}">'
    )


def _draw_density(model: Any, figure: Any) -> bool:
    """Draw the density of each column of numbers; whether there are any, and not too many."""
    from rtbm.plotting import plot_density

    found = zip(model.categories_, model.constants_, strict=True)
    numbers = [i for i, (levels, constant) in enumerate(found) if levels is None and np.isnan(constant)]
    if not 0 < len(numbers) <= PICTURED:
        return False
    n_columns = min(len(numbers), PANELS_IN_A_ROW)
    n_rows = -(-len(numbers) // n_columns)
    figure.set_size_inches(max(2.0 * n_columns, 3.5), 1.6 * n_rows + 0.4)
    for place, i in enumerate(numbers, start=1):
        ax = figure.add_subplot(n_rows, n_columns, place)
        plot_density(model.marginal(i), ax=ax, components=False, legend=False)
        ax.set(ylabel="", yticks=[], xlabel=_short(ax.get_xlabel()))
        ax.tick_params(labelsize="x-small")
        ax.xaxis.label.set_size("small")
    return True


def _draw_network(model: Any, figure: Any) -> bool:
    """Draw the activations of a network; an error if it has no theta layers."""
    from rtbm.plotting import plot_activations

    figure.set_size_inches(2.4 * len(model.layer_sizes_), 2.4)
    plot_activations(model, figure=figure)
    return True


def _short(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1].rstrip("\\") + "…"
