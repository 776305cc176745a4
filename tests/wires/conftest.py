"""Fixtures of the corpus."""

import pytest

from batuta.store import Store


@pytest.fixture
async def store(anyio_backend, tmp_path):
    async with Store(tmp_path / "runs.db") as store:
        yield store
