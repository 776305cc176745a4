"""The server's models as tools of a host that speaks the Model Context Protocol over HTTP."""
