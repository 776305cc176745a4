#!/usr/bin/env python3
"""A stand-in for llama.cpp's program: it loads for a moment, then tells how it was started."""

import gzip
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

ARGUMENTS = sys.argv[1:]
STARTED = time.monotonic()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        loading = time.monotonic() < STARTED + 0.3
        self._send(503 if loading else 200, {"data": [{"id": "fake", "owned_by": "llamacpp"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if FAULTS:
            self._fail(FAULTS.pop(0))
            return
        told = {"role": "assistant", "content": json.dumps([os.getpid(), *ARGUMENTS])}
        self._send(200, {"choices": [{"message": told, "finish_reason": "stop"}]})

    def _send(self, status, data):
        body = json.dumps(data).encode()
        self.send_response(status)
        if FILE == b"GGUF-that-packs" and "gzip" in self.headers["Accept-Encoding"]:
            body = gzip.compress(body)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _fail(self, fault):
        if fault == "cut":
            self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\nthe half")
        self.close_connection = True

    def log_message(self, *_):
        pass


FILE = Path(ARGUMENTS[ARGUMENTS.index("--model") + 1]).read_bytes()
if FILE == b"crash":
    sys.stdout.write("loading")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGILL)
if FILE[:4] != b"GGUF":
    sys.exit("error: this is no GGUF file")
FAULTS = FILE.decode().split()[1:] if FILE.startswith(b"GGUF-that-fails") else []
"""What it does with its first requests: it hangs up, or its answer is cut."""
port = int(ARGUMENTS[ARGUMENTS.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
