"""`batuta serve` as a process of its own."""

from __future__ import annotations

import os
import sys

import aiohttp
import anyio

from fakes.command_line import loaded_program
from fakes.environ import NOWHERE

ENDING_S = 15
"""Seconds that a server which takes no connections has to end by itself."""


class Server:
    """The process, for the length of a block."""

    def __init__(self, folder, *options, **environ):
        self.command = ["serve", "--port", "0", *options]
        self.starts_python = any(name.startswith("PYTHON") for name in environ)  # which reads them
        self.environ = {**os.environ, **NOWHERE, "BATUTA_HOME": str(folder / "home"), **environ}
        self.said = ""
        self.patience_s = 100

    async def __aenter__(self):
        if self.starts_python:
            command = [sys.executable, "-m", "batuta", *self.command]
            self.process = await anyio.open_process(command, env=self.environ)
        else:
            self.process = loaded_program().start(*self.command, env=self.environ)
        await self.until("/v1\n")
        url = self.said.split("at http://")[1].split("/v1")[0]
        self.http = aiohttp.ClientSession(f"http://{url}")
        return self

    async def end(self, number):
        """Sends the signal and waits until the process has ended."""
        self.process.send_signal(number)
        with anyio.fail_after(60):
            return await self.process.wait()

    async def until(self, words):
        """Reads what it says until it has said that."""
        with anyio.fail_after(self.patience_s):
            while words not in self.said:
                try:
                    self.said += (await self.process.stderr.receive()).decode()
                except anyio.EndOfStream:
                    code = await self.process.wait()
                    said = f"the server ended with {code}; it said: {self.said}"
                    raise RuntimeError(said) from None

    async def models(self):
        async with self.http.get("/v1/models") as response:
            return {model["id"] for model in (await response.json())["data"]}

    async def __aexit__(self, kind, error, trace):
        with anyio.CancelScope(shield=True):  # a cancelled block leaves no process behind
            if isinstance(error, aiohttp.ClientConnectionError):
                with anyio.move_on_after(ENDING_S):  # it says why once it has ended
                    await self.process.wait()
            ended = "was running"
            if self.process.returncode is None:
                self.process.kill()
            else:
                ended = f"had ended with {self.process.returncode}"
            await self.http.close()
            if error is not None:
                error.add_note(f"the server {ended}; it said: {self.said}{await self.rest()}")
            await self.process.aclose()

    async def rest(self):
        """The rest of what a process has said that has ended."""
        with anyio.move_on_after(5):  # one that it started may hold the pipe open
            return b"".join([part async for part in self.process.stderr]).decode()
        return ""
