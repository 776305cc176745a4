"""/v1/files."""
