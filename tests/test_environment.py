"""A secret may be a variable, or a file that a variable names."""

import pytest

from batuta.clients import find_provider, provider_key
from batuta.config.load import jobs_target, redis_target, store_target
from batuta.config.settings import ServerSetting
from batuta.environment import read_variable
from batuta.errors import ConfigError
from batuta.store.key_hasher import admin_token, open_key_hasher


def test_the_variable_comes_before_the_file(tmp_path):
    file = tmp_path / "key"
    file.write_text("from a file\n")
    named = {"KEY_FILE": str(file)}
    assert read_variable(named, "KEY") == "from a file"
    assert read_variable({**named, "KEY": "given"}, "KEY") == "given"
    assert read_variable({**named, "KEY": " "}, "KEY") == "from a file"
    assert not read_variable({}, "KEY")


@pytest.mark.parametrize("text", [None, "", " \n", b"\xff\xfe"])
def test_a_file_without_a_secret_is_said(tmp_path, text):
    file = tmp_path / "key"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match="KEY_FILE names"):
        read_variable({"KEY_FILE": str(file)}, "KEY")


def test_every_secret_can_be_a_file(tmp_path):
    def environ(name, text):
        (tmp_path / name).write_text(text + "\n")
        return {f"{name}_FILE": str(tmp_path / name)}

    key = provider_key(find_provider("openai"), environ("OPENAI_API_KEY", "sk-0123456789"))
    assert key.reveal() == "sk-0123456789"
    store = environ("BATUTA_STORE", "postgresql://u@h/d")
    assert store_target(store) == jobs_target(store) == "postgresql://u@h/d"
    assert redis_target(ServerSetting(), environ("BATUTA_REDIS", "redis://h")) == "redis://h"
    assert admin_token(environ("BATUTA_ADMIN_TOKEN", "secret")) == "secret"
    given = open_key_hasher(tmp_path, {"BATUTA_SECRET": "0123456789abcdef" * 4})
    filed = open_key_hasher(tmp_path, environ("BATUTA_SECRET", "0123456789abcdef" * 4))
    assert given.sign("a", "b") == filed.sign("a", "b")
