"""Every benchmark, one after another. `make bench`"""

import startup

import engine
import gateway

for part in (startup, gateway, engine):
    print(f"== {part.__name__}: {(part.__doc__ or '').splitlines()[0]}", flush=True)
    part.run()
