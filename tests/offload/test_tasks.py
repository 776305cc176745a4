"""Tasks beside a block end with it, and its errors stay as they are."""

import anyio
import pytest

from batuta.offload.tasks import open_background_tasks

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("fails", [False, True])
async def test_tasks_are_cancelled_at_the_end_of_the_block(fails):
    ended = anyio.Event()

    async def go_on():
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async def run():
        async with open_background_tasks() as tasks:
            tasks.start_soon(go_on)
            await anyio.lowlevel.checkpoint()
            if fails:
                raise KeyError("of the block")

    if fails:
        with pytest.raises(KeyError):
            await run()
    else:
        await run()
    assert ended.is_set()
