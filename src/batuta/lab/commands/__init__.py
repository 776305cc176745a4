"""The commands of the laboratory, which the command line finds by their entry points."""
