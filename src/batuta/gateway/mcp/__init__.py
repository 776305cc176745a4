"""The server's models as tools for hosts of the Model Context Protocol, over HTTP."""
