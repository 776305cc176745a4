"""Keys are kept as keyed hashes, under a secret that this user alone can read."""

from __future__ import annotations

import ast
import hashlib
import hmac
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from batuta.errors import ConfigError
from batuta.store import Store
from batuta.store.key_hasher import (
    SECRET_FILE,
    KeyHasher,
    digests_equal,
    open_key_hasher,
    parse_key_id,
)
from batuta.store.key_permissions import KeyPermissions

SOURCE = Path(__file__).resolve().parents[2] / "src" / "batuta"
SECRET = b"s" * 32
SECRET_NAME = re.compile(r"digest|signature|secret|proof|credential|hmac|mac$|_admin$|sign_\w+")


@pytest.mark.anyio
async def test_of_a_key_nothing_is_kept_but_a_keyed_hash(tmp_path):
    path = tmp_path / "runs.db"
    async with Store(path) as store:
        key, issued = await store.keys.create(KeyHasher(SECRET), "acme", "a key", KeyPermissions())
        found = await store.keys.find(key.id)
    assert found is not None
    assert found.digest == hmac.new(SECRET, issued.text.encode(), hashlib.sha256).digest()
    assert found.digest != KeyHasher(b"t" * 32).digest(issued.text)
    random_part = issued.text.rpartition(f"_{key.id}_")[2].encode()
    assert len(random_part) == 43, "32 bytes in base64"
    for file in path.parent.glob("runs.db*"):
        content = file.read_bytes()
        assert random_part not in content and SECRET not in content
        assert hashlib.sha256(issued.text.encode()).digest() not in content


def test_keys_have_nothing_in_common():
    issued = [KeyHasher(SECRET).issue() for _ in range(200)]
    assert len({one.text for one in issued}) == len({one.digest for one in issued}) == 200
    assert all(parse_key_id(one.text) == one.id for one in issued)


def unequal_time_comparisons(code):
    """Lines of the code that compare a hash or a secret by `==`, `!=` or `in`."""
    found = list[int]()
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Compare):
            continue
        if not any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops):
            continue
        names = [
            one.func if isinstance(one, ast.Call) else one for one in (node.left, *node.comparators)
        ]
        texts = [
            one.attr if isinstance(one, ast.Attribute) else one.id
            for one in names
            if isinstance(one, ast.Attribute | ast.Name)
        ]
        if any(SECRET_NAME.search(text) for text in texts):
            found.append(node.lineno)
    return found


def test_hashes_and_secrets_are_compared_in_constant_time():
    assert digests_equal(b"a" * 32, b"a" * 32)
    assert not digests_equal(b"a" * 32, b"b" * 32) and not digests_equal(b"", None)
    assert "hmac.compare_digest" in (SOURCE / "store" / "key_hasher.py").read_text("utf-8")
    assert unequal_time_comparisons("key.digest == other\nself._admin != given") == [1, 2]
    assert unequal_time_comparisons("text == self._sign_session(a, b)") == [1]
    folders = (SOURCE / "gateway" / "access", SOURCE / "gateway" / "ui")
    files = [file for folder in folders for file in folder.glob("*.py")]
    files += (SOURCE / "store").glob("key*.py")
    assert {"caller.py", "oidc.py", "session.py", "keys.py"} <= {file.name for file in files}
    found = {file.name: unequal_time_comparisons(file.read_text("utf-8")) for file in files}
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
def test_the_secret_is_a_file_that_this_user_alone_can_read(tmp_path):
    code = (
        "import os, sys; os.umask(0)\n"
        "from pathlib import Path; from batuta.store.key_hasher import open_key_hasher\n"
        "print(open_key_hasher(Path(sys.argv[1]), {}).sign('a', 'b'))"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    both = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    signed = {one.communicate(timeout=60)[0].strip() for one in both}
    file = tmp_path / SECRET_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "whatever the umask is"
    assert signed == {open_key_hasher(tmp_path, {}).sign("a", "b")}, (
        "of two who begin, one makes it"
    )
    assert [path.name for path in tmp_path.iterdir()] == [SECRET_FILE]
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="other users may read"):
        open_key_hasher(tmp_path, {})


@pytest.mark.parametrize("secret", ["", "short", "s" * 31])
def test_a_short_secret_is_refused(tmp_path, secret):
    with pytest.raises(ConfigError, match="32 bytes"):
        KeyHasher(secret.encode())
    (tmp_path / SECRET_FILE).write_text(secret.encode().hex())
    (tmp_path / SECRET_FILE).chmod(0o600)
    with pytest.raises(ConfigError, match="32 bytes"):
        open_key_hasher(tmp_path, {})
