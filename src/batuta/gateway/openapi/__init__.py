"""The server's own description, as OpenAPI 3.1."""
