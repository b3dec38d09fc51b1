"""Sphinx configuration: pages in Markdown, a gallery of examples that run, and one reference page for each class."""

import re
import zlib
from pathlib import Path
from typing import Any

import matplotlib as mpl
from sphinx.application import Sphinx
from sphinx_gallery.sorting import ExplicitOrder

mpl.use("agg")

project = "rtbm"
author = "The rtbm developers"
copyright = "2026, The rtbm developers"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",  # serves MathJax from the site itself
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
html_theme = "furo"
html_title = "rtbm"
html_favicon = "static/icon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
exclude_patterns = ["gallery/**/GALLERY_HEADER.rst", "reproduction/results/*"]  # these are parts of pages
suppress_warnings = [
    "config.cache",  # the order of the folders of the gallery is an object, which cannot be pickled
    "ref.python",  # `fit` in a docstring has many targets; it then stays without a link
]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
default_role = "py:obj"  # `name` in a docstring links to the name, where there is one
maximum_signature_line_length = 88
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]  # a list, beside properties of the same names

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

SECTIONS = ("densities", "prediction", "machine", "networks", "theta")
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "subsection_order": ExplicitOrder([f"../examples/{name}" for name in SECTIONS]),
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("rtbm",),
    "reference_url": {"rtbm": None},
    "matplotlib_animations": True,
    "abort_on_example_error": True,
    "capture_repr": (),
    "parallel": 2,
    "write_computation_times": False,
    "thumbnail_size": (640, 448),
}

# Names of other projects that pages refer to. Their inventories are fetched where there is a network.
# Without one, these few names are enough.
NAMES = {
    "numpy": ("https://numpy.org/doc/stable/", {"numpy.ndarray": "reference/generated/numpy.ndarray.html"}),
    "pandas": ("https://pandas.pydata.org/docs/", {"pandas.DataFrame": "reference/api/pandas.DataFrame.html"}),
    "sklearn": (
        "https://scikit-learn.org/stable/",
        {
            "sklearn.base.BaseEstimator": "modules/generated/sklearn.base.BaseEstimator.html",
            "sklearn.mixture.GaussianMixture": "modules/generated/sklearn.mixture.GaussianMixture.html",
        },
    ),
    "torch": (
        "https://docs.pytorch.org/docs/stable/",
        {
            "torch.Tensor": "tensors.html",
            "torch.distributions.distribution.Distribution": "distributions.html",
            "torch.nn.Module": "generated/torch.nn.Module.html",
        },
    ),
}


def write_inventory(project: str, names: dict[str, str]) -> str:
    """An inventory of some classes in Sphinx's format; returns its path."""
    path = Path(__file__).parent.parent / "build" / "inventories" / f"{project}.inv"
    path.parent.mkdir(parents=True, exist_ok=True)
    header = (
        f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n# The remainder is compressed using zlib.\n"
    )
    lines = "".join(f"{name} py:class 1 {page}#$ -\n" for name, page in names.items())
    path.write_bytes(header.encode() + zlib.compress(lines.encode()))
    return str(path)


intersphinx_mapping = {
    project: (address, (None, write_inventory(project, names))) for project, (address, names) in NAMES.items()
}
intersphinx_timeout = 5


def skip_member(app: Sphinx, kind: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out scikit-learn's metadata routing, which every estimator inherits and hardly anybody calls."""
    return True if re.fullmatch(r"set_\w+_request|get_metadata_routing", name) else None


def plain_roles(app: Sphinx, kind: str, name: str, member: Any, options: Any, lines: list[str]) -> None:
    """Inherited docstrings of scikit-learn refer to labels of its own site: keep their words."""
    lines[:] = [re.sub(r":(?:ref|term):`([^`<]*?)(?: <[^`]*>)?`", r"\1", line) for line in lines]


def without_icons(app: Sphinx, name: str, source: list[str]) -> None:
    """Animations of matplotlib ask another site for icons: static/site.css draws them instead."""
    source[0] = re.sub(r"<link[^>]*font-awesome[^>]*>", "", source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", without_icons)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-docstring", plain_roles)
