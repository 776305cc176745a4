"""Where a model is loaded from: its folder, the hub, or the cache while the hub is away."""

import pytest

pytest.importorskip("huggingface_hub")

from huggingface_hub import HfApi

from batuta.lab.train.hub import find_reachable

AWAY = HfApi(endpoint="http://127.0.0.1:9")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put_into_cache(cache):
    """The files of a model as the libraries keep them; returns their folder."""
    kept = cache / "models--owner--small"
    folder = kept / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(COMMIT)
    return folder


def test_a_folder_is_itself_and_the_hub_is_not_asked(tmp_path):
    assert find_reachable(str(tmp_path), "v1", hub=AWAY) == (str(tmp_path), "v1")


def test_while_the_hub_is_away_what_was_fetched_is_used(tmp_path):
    folder = put_into_cache(tmp_path)
    assert find_reachable("owner/small", None, hub=AWAY, cache=tmp_path) == (str(folder), None)


def test_while_the_hub_is_away_what_was_never_fetched_is_missed_at_once(tmp_path):
    with pytest.raises(OSError, match="the hub cannot be reached"):
        find_reachable("owner/small", None, hub=AWAY, cache=tmp_path)


def test_what_is_no_id_is_left_to_whoever_loads_it():
    assert find_reachable("a/b/c", None, hub=AWAY) == ("a/b/c", None)
