"""Fixtures of the client tests."""

import pytest

from batuta.clients import HttpTransport
from clients.cases import CASES


@pytest.fixture
async def http(anyio_backend):
    async with HttpTransport(connect=30.0, idle=0.5) as http:
        yield http


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param
