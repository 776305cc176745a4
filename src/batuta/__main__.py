"""`python -m batuta` is the command line."""

from batuta.cli import main

main()
