"""The web page: screens for people who would rather look than read.

Rendered here, on the server; one script and one style sheet, both our own, go to the browser, and
nothing is asked of any other host.
"""

from batuta.gateway.ui.rendering import compile_templates
from batuta.gateway.ui.routes import page_routes

__all__ = ["compile_templates", "page_routes"]
