"""How the documentation is built: `make docs`."""

import gpufabric

project = "gpufabric"
copyright = "gpufabric's authors"
release = version = gpufabric.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.doctest", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_gen"]
html_theme = "furo"
html_title = "gpufabric"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_fence_as_directive = ["doctest", "testcode", "testoutput", "testsetup"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of private modules have no page of their own
doctest_global_setup = "import gpufabric as gf"
suppress_warnings = ["myst.header"]
napoleon_custom_sections = [("Fields", "params_style")]
