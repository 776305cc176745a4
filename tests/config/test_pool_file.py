"""Workers changed in a settings file: all else stays as it was written."""

import tomllib
from pathlib import Path

import pytest

from batuta.config.pool_file import HISTORY_LENGTH, PoolFile, add_worker, change_worker
from batuta.errors import ConfigError

UNWRITABLE = Path("/proc/version")

TEXT = """\
# Our pool.
[server]
running = 64  # places

[[workers]]            # the fast one
id = "fast"
model = "m-1"
description = "Short answers."   # seen by the conductor
tags = [
    "vision",   # pictures
]

# The one that thinks.
[[workers]]
id = 'slow'
model = "m-2"
[workers.sampling]
temperature = 0.5

[conductor]
use = "best"
"""


def lines_of(before, after):
    """The lines that are gone, and those that are new."""
    old, new = before.splitlines(), after.splitlines()
    return [each for each in old if each not in new], [each for each in new if each not in old]


@pytest.mark.parametrize(
    ("worker", "values", "gone", "new"),
    [
        ("slow", {"enabled": False}, [], ["enabled = false"]),
        ("slow", {"description": 'A "quote" \\ and ü\n2'}, [], ['description = "A \\"quote\\" \\\\ and ü\\n2"']),
        ("fast", {"description": "New."}, ['description = "Short answers."   # seen by the conductor'], ['description = "New."   # seen by the conductor']),
        ("fast", {"tags": None}, ["tags = [", '    "vision",   # pictures', "]"], []),
        ("fast", {"price": {"input": 2, "output": 0.5}}, [], ["price = { input = 2, output = 0.5 }"]),
        ("fast", {"description": "Short answers."}, [], []),
    ],
)  # fmt: skip
def test_only_the_lines_of_a_value_change(worker, values, gone, new):
    changed = change_worker(TEXT, worker, values)
    assert lines_of(TEXT, changed) == (gone, new)
    workers = {each["id"]: each for each in tomllib.loads(changed)["workers"]}
    for name, value in values.items():
        assert workers[worker].get(name) == value
    assert workers["slow"]["sampling"] == {"temperature": 0.5}


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ('model = "m-1"  # it\'s the "first"', '  # it\'s the "first"'),
        ("model = 'm # 1'# near", "# near"),
        ('model = "a\\"#"\t# said "so"\u2028twice', '\t# said "so"\u2028twice'),
    ],
)
def test_the_comment_behind_a_value_stays_whatever_is_in_it(line, kept):
    text = f'[[workers]]\nid = "a"\n{line}\nenabled = true\n'
    assert change_worker(text, "a", {"model": "m-2"}) == text.replace(line, f'model = "m-2"{kept}')


def test_a_worker_is_added_at_the_end():
    added = add_worker(TEXT, {"id": "new", "model": "m-3", "price": {"input": 1, "output": 2}})
    assert added.startswith(TEXT)
    assert tomllib.loads(added)["workers"][-1]["price"]["output"] == 2
    with pytest.raises(ConfigError, match="there is a worker new already"):
        add_worker(added, {"id": "new", "model": "m"})
    assert tomllib.loads(add_worker("", {"id": "a", "model": "m"}))["workers"][0]["id"] == "a"


@pytest.mark.parametrize(
    "text",
    [
        'workers = [{ id = "slow", model = "m" }]\n',
        '[[workers]]\nid = "x"\nmodel = """\n[[workers]]\n"""\n[[workers]]\nid = "slow"\nmodel = "m"\n',
        '[[workers]]\nid = "slow"\nmodel = "m"\n[workers.price]\ninput = 1\noutput = 1\n',
        '[[ "workers" ]]\nid = "slow"\nmodel = "m"\n',
    ],
)
def test_a_file_of_another_form_is_left_to_its_author(text):
    with pytest.raises(ConfigError, match="change it in a text editor"):
        change_worker(text, "slow", {"price": {"input": 2, "output": 2}})


def test_who_is_not_there_is_not_changed():
    with pytest.raises(ConfigError, match="no worker nobody"):
        change_worker(TEXT, "nobody", {"enabled": False})
    with pytest.raises(ConfigError, match="is not TOML"):
        change_worker("[[", "slow", {"enabled": False})


def test_changes_are_taken_back_until_somebody_else_changes_the_file(tmp_path):
    path = tmp_path / "batuta.toml"
    path.write_text(TEXT)
    path.chmod(0o640)
    file = PoolFile(path)
    with pytest.raises(ConfigError, match="there is no change to undo"):
        file.undo()
    texts = [TEXT]
    for name in ("fast", "slow"):
        texts.append(change_worker(texts[-1], name, {"enabled": False}))
        file.write(texts[-2], texts[-1], what=f"{name}: off", by="admin")
    assert [each.what for each in file.history()] == ["slow: off", "fast: off"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert all(
        p.stat().st_mode & 0o777 == 0o600 for p in path.with_name("batuta.toml.history").iterdir()
    )
    file.undo()
    assert path.read_text() == texts[1]
    path.write_text(texts[1] + "# by hand\n")
    with pytest.raises(ConfigError, match="changed elsewhere in the meantime"):
        file.undo()
    with pytest.raises(ConfigError, match="changed elsewhere in the meantime"):
        file.write(texts[1], TEXT, what="", by="")
    assert path.read_text() == texts[1] + "# by hand\n"


def test_the_oldest_changes_are_forgotten(tmp_path):
    path = tmp_path / "batuta.toml"
    path.write_text("")
    file = PoolFile(path)
    for number in range(HISTORY_LENGTH + 3):
        file.write(path.read_text(), f"# {number}\n", what=str(number), by="admin")
    found = file.history()
    assert len(found) == HISTORY_LENGTH
    assert found[0].what == str(HISTORY_LENGTH + 2)


def test_line_ends_and_names_outside_ascii_are_kept(tmp_path):
    path = tmp_path / "batuta.toml"
    path.write_bytes(TEXT.replace("\n", "\r\n").encode())
    file = PoolFile(path)
    text = file.read()
    changed = change_worker(text, "fast", {"description": "New.", "skills": {"🎵": 0.5}})
    file.write(text, changed, what="changed fast", by="ada")
    gone, new = lines_of(text, path.read_bytes().decode())
    assert gone == ['description = "Short answers."   # seen by the conductor']
    assert new == ['description = "New."   # seen by the conductor', 'skills = { "🎵" = 0.5 }']
    assert path.read_bytes().count(b"\r\n") == TEXT.count("\n") + 1


def test_a_file_of_windows_keeps_its_line_ends(tmp_path):
    path = tmp_path / "batuta.toml"
    path.write_bytes(TEXT.replace("\n", "\r\n").encode())
    file = PoolFile(path)
    before = file.read()
    changed = change_worker(before, "fast", {"description": "New.", "enabled": False, "tags": None})
    changed = add_worker(changed, {"id": "new", "model": "m-3"})
    file.write(before, changed, what="fast: described", by="admin")
    assert path.read_bytes().count(b"\n") == path.read_bytes().count(b"\r\n") > 0
    assert b'description = "New."   # seen by the conductor\r\n' in path.read_bytes()
    file.undo()
    assert path.read_bytes() == TEXT.replace("\n", "\r\n").encode()


def test_a_link_to_the_file_stays_a_link(tmp_path):
    real = tmp_path / "versioned" / "pool.toml"
    real.parent.mkdir()
    real.write_text(TEXT)
    path = tmp_path / "batuta.toml"
    path.symlink_to(real)
    file = PoolFile(path)
    file.write(TEXT, "# new\n", what="all", by="admin")
    assert path.is_symlink()
    assert real.read_text() == "# new\n"
    file.undo()
    assert path.is_symlink()
    assert real.read_text() == TEXT


@pytest.mark.skipif(not UNWRITABLE.exists(), reason="needs a file beside which none can be made")
def test_what_could_not_be_written_is_no_change_of_the_history(tmp_path):
    path = tmp_path / "batuta.toml"
    path.symlink_to(UNWRITABLE)
    file = PoolFile(path)
    with pytest.raises(ConfigError, match="cannot be written"):
        file.write(file.read(), TEXT, what="all", by="admin")
    assert file.history() == []
