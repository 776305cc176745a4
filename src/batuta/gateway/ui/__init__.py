"""The web UI: screens for asking questions, inspecting runs and administering the server.

Pages are rendered on the server. The browser gets one script and one style sheet from this server,
and loads nothing from other hosts.
"""

from batuta.gateway.ui.rendering import compile_templates
from batuta.gateway.ui.routes import page_routes

__all__ = ["compile_templates", "page_routes"]
