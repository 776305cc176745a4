"""Every benchmark, one after another. `make bench`"""

import ask
import embedded
import engine
import gateway
import graders
import page
import sandbox
import serving
import startup
import train


def run():
    for part in (startup, ask, embedded, gateway, serving, page, engine, graders, sandbox, train):
        print(f"== {part.__name__}: {(part.__doc__ or '').splitlines()[0]}", flush=True)
        part.run()


if __name__ == "__main__":
    run()
