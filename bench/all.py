"""Every benchmark, one after another. `make bench`"""

import engine
import gateway
import startup

for part in (startup, gateway, engine):
    print(f"== {part.__name__}: {(part.__doc__ or '').splitlines()[0]}", flush=True)
    part.run()
