"""The laboratory's commands, which the command line loads by their entry points."""
