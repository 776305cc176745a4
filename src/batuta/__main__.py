"""Entry point of the command line: `batuta`, `python -m batuta`."""

import gc

# Imported modules are never freed: collecting them repeatedly would take a quarter of the start-up.
gc.disable()
from batuta.cli import main  # noqa: E402 - see above

gc.freeze()
gc.enable()

if __name__ == "__main__":
    main()
