"""Serves SmolLM2-135M-Instruct and the adapters of a folder by llama.cpp, on this machine alone.

    python recipes/small-models/serve.py --port 8091 --adapters recipes/small-models/adapters

Adapters are loaded in the order of their names and are switched off until a request names one:
`{"lora": [{"id": 0, "scale": 1.0}]}`. With `--check` it prints which number each has, and ends.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import xllamacpp

from batuta.lab.train.gguf_files import find_gguf


def list_adapters(folder: Path) -> list[Path]:
    """The adapters in the order of their numbers."""
    return sorted(folder.glob("*.gguf"))


def server_parameters(wanted: argparse.Namespace) -> xllamacpp.CommonParams:
    """One slot a request, one thread: two threads on two busy cores wait for each other."""
    params = xllamacpp.CommonParams()
    params.model.path = str(find_gguf(wanted.model))
    params.hostnames = ["127.0.0.1"]
    params.port = wanted.port
    params.n_parallel = wanted.slots
    params.n_ctx = wanted.slots * wanted.context
    params.cpuparams.n_threads = wanted.threads
    params.cpuparams_batch.n_threads = wanted.threads
    params.n_gpu_layers = 0
    params.warmup = False
    params.cache_ram_mib = 256
    params.verbosity = 0
    loaded: list[xllamacpp.CommonAdapterLoraInfo] = []
    for path in list_adapters(wanted.adapters):
        one = xllamacpp.CommonAdapterLoraInfo()
        one.path, one.scale = str(path), 0.0  # until a request says otherwise
        loaded.append(one)
    params.lora_adapters = loaded
    return params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="a GGUF file, or smollm2")
    parser.add_argument("--adapters", type=Path, default=Path(__file__).parent / "adapters")
    parser.add_argument("--port", type=int, default=8091)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=2048, help="tokens a slot")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    wanted = parser.parse_args()
    for number, path in enumerate(list_adapters(wanted.adapters)):
        print(number, path.stem, flush=True)
    if wanted.check:
        return
    server = xllamacpp.Server(server_parameters(wanted))
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
