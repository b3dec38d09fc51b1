"""Sphinx configuration."""

project = "rtbm"
author = "The rtbm developers"
copyright = "2026, The rtbm developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
html_theme = "furo"
html_title = "rtbm"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_rtype = False
exclude_patterns = ["_build"]
