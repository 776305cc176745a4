"""Numbers in queries are read whole or refused: none passes by its beginning, none is a 500."""

from __future__ import annotations

import pytest

from batuta.gateway.errors import APIError
from batuta.gateway.http.body import query_number
from gateway.keyed_server import KeyedServer

WRONG = ("", "0", "-1", "+1", " 1", "1.0", "1e2", "101", "٣", "²", "000000100" + "9" * 12,
         "0" * 9 + "9" * 5_000, "9" * 5_000, "0" * 100_000)  # fmt: skip


@pytest.mark.parametrize("given", WRONG, ids=range(len(WRONG)))
def test_what_is_out_of_bounds_is_refused(given):
    with pytest.raises(APIError) as caught:
        query_number(given, "limit", 1, 100)
    assert caught.value.status == 400 and len(str(caught.value.body)) < 300


def test_what_is_within_them_is_read():
    assert [query_number(text, "n", 0, 100) for text in ("0", "00", "7", "0" * 99 + "7", "100")] == [0, 0, 7, 7, 100]  # fmt: skip


@pytest.mark.anyio
async def test_no_list_takes_a_number_by_its_beginning(store):
    async with KeyedServer(store) as server:
        key = await server.key("acme")
        for path in ("/v1/runs", "/v1/sessions", "/v1/files", "/v1/responses/resp_x/input_items"):
            for given in ("000000010" + "9" * 5_000, "0000000010" + "9" * 12):
                status, _, said = await server.ask(key, f"{path}?limit={given}", "GET")
                assert status in {400, 404}, (path, status, said)
