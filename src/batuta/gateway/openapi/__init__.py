"""The server's OpenAPI 3.1 document."""
