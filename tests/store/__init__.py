"""The store against real SQLite files."""
