"""Settings files and the environment: how they are read, checked and turned into a pool."""
