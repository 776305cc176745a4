"""One sandbox of each tier that holds on this machine, for all tests of a module."""

import pytest

from batuta.errors import SandboxError
from batuta.sandbox import Sandbox, SandboxBackend


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(
    scope="module", params=[SandboxBackend.BUBBLEWRAP, SandboxBackend.LANDLOCK], ids=str
)
async def sandbox(request, anyio_backend):
    try:
        opening = Sandbox.open(request.param)
        sandbox = await opening.__aenter__()
    except SandboxError as error:
        pytest.skip(str(error))
    yield sandbox
    await opening.__aexit__(None, None, None)
