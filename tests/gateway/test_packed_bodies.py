"""Bodies that come packed, as Codex sends them: taken, and bounded by what they unpack to."""

import gzip
import json
import zlib

import pytest
import zstandard

from batuta.clients import ScriptedClient
from batuta.gateway.http.request_slots import MAX_BODY
from gateway.live_server import HI, Serving, scripted_state

pytestmark = pytest.mark.anyio
BODY = json.dumps({"model": "worker/ada", "messages": HI, "max_tokens": 9}).encode()
PATHS = ["/v1/chat/completions", "/v1/messages"]


def server():
    return Serving(scripted_state({"ada": ScriptedClient(lambda _: "Hello.")}))


async def post(serving, path, body, encoding, **headers):
    headers |= {"content-type": "application/json", "content-encoding": encoding}
    async with serving.http.post(path, data=body, headers=headers) as response:
        return response.status, dict(response.headers), await response.json()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("zstd", zstandard.ZstdCompressor(level=3).compress),
        ("zstd", lambda body: zstandard.ZstdCompressor(write_content_size=False).compress(body)),
        ("gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("identity", bytes),
    ],
)
async def test_a_packed_body_is_taken(path, encoding, pack):
    async with server() as serving:
        status, _, told = await post(serving, path, pack(BODY), encoding)
        assert (status, "Hello." in json.dumps(told)) == (200, True)
        key = {"Idempotency-Key": "once"}
        assert (await post(serving, path, pack(BODY), encoding, **key))[0] == 200


@pytest.mark.parametrize("encoding", ["br", "gzip, zstd", "compress"])
async def test_another_encoding_is_refused_with_those_that_are_taken(encoding):
    async with server() as serving:
        status, headers, told = await post(serving, PATHS[0], BODY, encoding)
    assert (status, told["error"]["code"]) == (415, "unsupported_media_type")
    assert headers["Accept-Encoding"] == "gzip, zstd"


@pytest.mark.parametrize("body", [b"", b"{}"])
async def test_what_is_sent_with_a_read_in_pieces_breaks_nothing(store, caplog, body):
    state = scripted_state({"ada": ScriptedClient(lambda _: "Hello.")}, store=store)
    async with Serving(state) as serving:
        _, headers, _ = await serving.post(json={"model": "worker/ada", "messages": HI})
        url = f"/v1/runs/{headers['x-batuta-run-id']}"
        for _ in range(5):
            sent = {"content-encoding": "brotli"}
            async with serving.http.get(url, headers=sent, data=body) as response:
                assert response.status in {200, 415}
                await response.read()
    assert not [one for one in caplog.records if one.exc_info]


@pytest.mark.parametrize(
    ("encoding", "pack"), [("zstd", zstandard.compress), ("gzip", gzip.compress)]
)
async def test_what_unpacks_to_too_much_or_to_nothing_is_refused(encoding, pack):
    async with server() as serving:
        for size, wanted in ((MAX_BODY + 1, 413), (10 * MAX_BODY, 413), (MAX_BODY, 400)):
            packed = pack(b" " * size)
            assert len(packed) < MAX_BODY / 20
            assert (await post(serving, PATHS[0], packed, encoding))[0] == wanted
        for broken in (pack(BODY)[:-5], BODY, b"", pack(BODY) * 2, pack(BODY) + b"{}"):
            assert (await post(serving, PATHS[0], broken, encoding))[0] == 400
        status, _, _ = await post(serving, PATHS[0], pack(BODY), encoding)
        assert status == 200, "nothing of it is held"


async def test_a_frame_that_asks_for_much_memory_is_refused():
    wide = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    packed = packer.compress(BODY + b" " * (9 << 20)) + packer.flush()
    async with server() as serving:
        assert (await post(serving, PATHS[0], packed, "zstd"))[0] == 400
