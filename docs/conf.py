"""The documentation: `python -m sphinx -W docs build/docs`, with the extra `docs` installed."""

from importlib.metadata import version as installed

project = "npquant"
author = "The npquant developers"
copyright = author
version = release = installed("npquant")

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]

# Headings are link targets three levels deep, by the names that GitHub gives them.
myst_heading_anchors = 3
autodoc_typehints = "none"  # numpydoc's Parameters say more
numpydoc_show_class_members = False
highlight_language = "python3"

html_theme = "alabaster"
html_theme_options = {
    "description": "PyTorch's quantization numerics for NumPy, bit for bit",
    "fixed_sidebar": True,
    "page_width": "1100px",
}
