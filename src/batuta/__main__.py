"""The start of the command line: `batuta`, `python -m batuta`."""

import gc

# What is imported stays: looking through it again and again would be a quarter of the start.
gc.disable()
from batuta.cli import main  # noqa: E402 - see above

gc.freeze()
gc.enable()

if __name__ == "__main__":
    main()
