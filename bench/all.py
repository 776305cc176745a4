"""Every benchmark, one after another. `make bench`"""

import startup

import embedded
import engine
import gateway

for part in (startup, embedded, gateway, engine):
    print(f"== {part.__name__}: {(part.__doc__ or '').splitlines()[0]}", flush=True)
    part.run()
