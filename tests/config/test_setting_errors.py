"""A wrong setting is told in a person's words, never in those of Python or pydantic."""

import tomllib
from pathlib import Path

import pytest

from batuta.clients import HttpTransport
from batuta.config.load import DEFAULT_FILE, load_config
from batuta.config.pool_file import PoolFile
from batuta.config.settings import Settings
from batuta.config.settings_file import read_settings, read_top_level_names, validate_settings
from batuta.errors import ConfigError
from batuta.lab.train.settings import TrainSettings

pytestmark = pytest.mark.anyio
WORKER = '[[workers]]\nid = "sonnet"\nmodel = "claude"\nprovider = "anthropic"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[limit]\nmax_steps = 3", "there is no setting limit; did you mean limits?"),
        ("[limits]\nmax_step = 3", "there is no setting limits.max_step; did you mean max_steps?"),
        (
            WORKER + 'base_ulr = "http://x"',
            'in [[workers]] "sonnet": there is no setting base_ulr; did you mean base_url?',
        ),
        (
            WORKER + "sampling = { temprature = 1 }",
            (
                'in [[workers]] "sonnet": there is no setting sampling.temprature; '
                "did you mean temperature?"
            ),
        ),
        ('[[workers]]\nid = "a"', 'in [[workers]] "a": model is missing'),
        ("[[workers]]\nprovider = 3", "in [[workers]] number 1: id is missing"),
        (
            WORKER + "sampling = { temperature = -1 }",
            'in [[workers]] "sonnet": sampling.temperature must be at least 0, not -1',
        ),
        (WORKER + "price = 3", 'in [[workers]] "sonnet": price must be a table, not 3'),
        (
            WORKER + "[[workers.deployments]]\nweight = 2",
            'in [[workers]] "sonnet", [[workers.deployments]] number 1: base_url is missing',
        ),
        (WORKER + 'tags = "vision"', 'in [[workers]] "sonnet": tags must be a list, not "vision"'),
        (
            WORKER + "tags = [3]",
            'in [[workers]] "sonnet": tags[1] must be a string in quotes, not 3',
        ),
        (
            WORKER + 'skills = { maths = "good" }',
            'in [[workers]] "sonnet": skills.maths must be a number or a table, not "good"',
        ),
        (
            WORKER + "skills = { maths = { share = 2 } }",
            'in [[workers]] "sonnet": skills.maths.share must be at most 1, not 2',
        ),
        (
            '[limits]\nmax_steps = "five"',
            'limits.max_steps must be a whole number, not "five"',
        ),
        ("[limits]\nmax_steps = 0", "limits.max_steps must be at least 1, not 0"),
        ("[limits]\nmax_steps = 12", "limits.max_steps must be at most 5, not 12"),
        (
            f'[[plan_rules]]\nname = "r"\nno_self_check = true\nsays = "{"x" * 501}"',
            'in [[plan_rules]] "r": says must have at most 500 characters',
        ),
        ("[limits]\nmax_rounds = 99", "limits.max_rounds must be at most 3, not 99"),
        ("[resilience]\nhedge_s = 0", "resilience.hedge_s must be more than 0, not 0"),
        (
            "[server]\nprivate_pictures = 3",
            "server.private_pictures must be true or false, not 3",
        ),
        (
            '[[policies]]\nname = "p"\nkind = "secrets"\non = ["inputs"]',
            'in [[policies]] "p": on[1] must be one of input, between or output, not "inputs"',
        ),
        (
            '[[policies]]\nname = "p"\nkind = "secrets"\non = []',
            'in [[policies]] "p": on must not be empty',
        ),
        (
            '[conductor]\nworker = "a"\nmodel = "b"',
            "conductor: there are two conductors: name `worker`, or `provider` and `model`",
        ),
    ],
)
def test_a_wrong_setting_is_one_plain_sentence(text, sentence, tmp_path):
    file = tmp_path / "batuta.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_settings(file, Settings)
    assert str(caught.value) == f"{file}: {sentence}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[optimizer]\nsteps = 3", "there is no setting optimizer; did you mean optimiser?"),
        (
            "[policy.lora]\nranks = 3",
            "there is no setting policy.lora.ranks; did you mean rank?",
        ),
        (
            "[[curriculum]]\nstep = []",
            "in [[curriculum]] number 1: step must be a whole number, not a list",
        ),
        (
            '[reward]\ncost = "time"',
            'reward.cost must be one of none, tokens, usd or calls, not "time"',
        ),
        ("[optimiser]\ngroup = 0", "optimiser.group must be at least 2, not 0"),
        ("[optimiser]\nsteps = 1.5", "optimiser.steps must be a whole number, not 1.5"),
    ],
)
def test_a_wrong_setting_of_a_training_is_one_plain_sentence(text, sentence):
    with pytest.raises(ConfigError) as caught:
        validate_settings(tomllib.loads(text), "mine.toml", TrainSettings)
    assert str(caught.value) == f"mine.toml: {sentence}"


def test_a_name_that_is_like_no_other_gets_the_list(tmp_path):
    file = tmp_path / "batuta.toml"
    file.write_text("xyzzy = 1", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"no setting xyzzy; choose among: .*limits.*workers"):
        read_settings(file, Settings)


SEARCH = '[tools.search]\nengine = "brave"\n'
OIDC = (
    '[oidc]\nissuer = "https://x.example"\nclient_id = "a"\nredirect_uri = "https://b.example/c"\n'
)


@pytest.mark.parametrize("secret", ["sk-live-abc", "AIzaSyD4example", "https://u:p@x", "two words"])
@pytest.mark.parametrize(
    "place",
    [
        WORKER + "key_env",
        WORKER + '[[workers.deployments]]\nbase_url = "https://x.example"\nkey_env',
        SEARCH + "key_env",
        OIDC + "client_secret_env",
        '[approval_webhook]\nurl = "https://x.example"\nsecret_env',
        '[moderation]\nmodel = "m"\nkey_env',
    ],
)
def test_a_secret_where_its_variable_is_meant_is_not_repeated(place, secret, tmp_path):
    file = tmp_path / "batuta.toml"
    file.write_text(f'{place} = "{secret}"')
    with pytest.raises(ConfigError, match="not the name of an environment variable") as found:
        read_settings(file, Settings)
    assert secret not in str(found.value)


@pytest.mark.parametrize("address", ["ftp://me:S3CRET@x.example", "me:S3CRET@x.example"])
@pytest.mark.parametrize(
    "place",
    [
        WORKER + "price",
        "[approval_webhook]\nurl",
        "[server]\nrun_days",
        "[tools.fetch]\nnone",
    ],
)
def test_a_password_in_a_wrong_address_is_not_repeated(place, address, tmp_path):
    file = tmp_path / "batuta.toml"
    file.write_text(f'{place} = "{address}"')
    with pytest.raises(ConfigError) as found:
        read_settings(file, Settings)
    assert "S3CRET" not in str(found.value)


def test_a_file_that_is_nested_without_end_is_one_plain_sentence(tmp_path):
    file = tmp_path / "batuta.toml"
    file.write_text("x = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(ConfigError, match="is not TOML"):
        read_settings(file, Settings)


@pytest.mark.parametrize("kind", ["folder", "lost link"])
async def test_settings_that_are_here_and_cannot_be_read_are_not_passed_over(
    kind, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if kind == "folder":
        Path(DEFAULT_FILE).mkdir()
    else:
        Path(DEFAULT_FILE).symlink_to(tmp_path / "gone.toml")
    async with HttpTransport() as http:
        with pytest.raises(ConfigError, match=r"^batuta\.toml cannot be read: "):
            await load_config(http, environ={"OPENAI_API_KEY": "sk-x"}, rehearses=True)


@pytest.mark.parametrize("owner", ["worker a", "moderation"])
async def test_a_key_that_cannot_be_sent_is_told_with_the_name_of_its_variable(owner, tmp_path):
    file = tmp_path / "batuta.toml"
    worker = '[[workers]]\nid = "a"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    place = worker if owner == "worker a" else f'{worker}[moderation]\nmodel = "m"\n'
    file.write_text(f'{place}key_env = "MY_KEY"\n')
    async with HttpTransport() as http:
        with pytest.raises(ConfigError, match=f"^{owner}: MY_KEY: an API key contains"):
            await load_config(http, pool=str(file), environ={"MY_KEY": "two words"})
        with pytest.raises(
            ConfigError, match=f"^{owner} needs the variable MY_KEY: set it to the key$"
        ):
            await load_config(http, pool=str(file), environ={"MY_KEY": " "})


async def test_an_address_of_the_moderation_that_is_none_is_told_with_its_place(tmp_path):
    file = tmp_path / "batuta.toml"
    file.write_text(f'{WORKER}[moderation]\nmodel = "m"\nbase_url = "127.0.0.1:9"\n')
    async with HttpTransport() as http:
        with pytest.raises(ConfigError, match=r"^moderation: the base URL of a provider must"):
            await load_config(http, pool=str(file), environ={"ANTHROPIC_API_KEY": "sk-x"})


def test_a_file_that_an_editor_of_windows_wrote_is_read(tmp_path):
    file = tmp_path / "batuta.toml"
    file.write_bytes(b"\xef\xbb\xbf" + WORKER.replace("\n", "\r\n").encode())
    assert [worker.id for worker in read_settings(file, Settings).workers] == ["sonnet"]
    assert read_top_level_names(file) == {"workers"}
    assert PoolFile(file).workers()[0]["id"] == "sonnet"


async def test_a_name_that_no_file_may_have_is_unknown(tmp_path):
    path = tmp_path / "batuta.toml"
    path.write_text('[[workers]]\nid = "a"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n')
    long = "x" * 300
    async with HttpTransport() as http:
        with pytest.raises(ConfigError, match="there is no conductor"):
            await load_config(http, pool=str(path), conductor=long, environ={})
        path.write_text(f'{path.read_text()}[ultra]\nconductor = "{long}"\n')
        with pytest.raises(ConfigError, match="there is no conductor"):
            await load_config(http, pool=str(path), environ={})
        with pytest.raises(ConfigError, match="cannot be read"):
            await load_config(http, pool=long, environ={})


async def test_keys_are_read_from_files_and_a_wrong_one_is_named(tmp_path):
    path, secret = tmp_path / "batuta.toml", tmp_path / "key"
    worker = '[[workers]]\nid = "a"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    path.write_text(f'{worker}key_env = "MY_KEY"\n')
    secret.write_text("sk-1\n")
    search = '[tools.search]\nengine = "brave"\nserver_tool = true\nkey_env = "MY_SEARCH"\n'
    webhook = '[approval_webhook]\nurl = "http://127.0.0.1:9"\n'
    async with HttpTransport() as http:
        loaded = await load_config(http, pool=str(path), environ={"MY_KEY_FILE": str(secret)})
        assert len(loaded.pool) == 1
        for table, variable in ((search, "MY_SEARCH"), (webhook, "BATUTA_WEBHOOK_SECRET")):
            path.write_text(worker + table)
            name = {"MY_SEARCH": "tools.search", "BATUTA_WEBHOOK_SECRET": "approval_webhook"}
            with pytest.raises(ConfigError, match=name[variable]):
                await load_config(http, pool=str(path), environ={variable: "not a key"})


@pytest.mark.parametrize("name", ["alone", "best", "single/a"])
async def test_a_preset_of_one_worker_passes_requests_on(tmp_path, name):
    path = tmp_path / "batuta.toml"
    path.write_text(
        '[[workers]]\nid = "a"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
        f'[models.mine]\nconductor = "{name}"\n'
    )
    async with HttpTransport() as http:
        config = await load_config(http, pool=str(path), environ={})
    assert config.presets[0].direct
