"""A trained conductor behind a server is prompted as it was in training, byte for byte."""

import json

import pytest

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import Question, Task, TaskId
from batuta.embedded.policy import ConductorCard, card_path
from batuta.engine import conduct
from batuta.errors import ConfigError
from batuta.lab.train.episodes import Episode, render_chat_prompt
from batuta.lab.train.model import make_tokenizer
from batuta.language import PromptOptions
from fakes import FakeOpenAI

pytestmark = pytest.mark.anyio
FLOW = 'model_id = [1]\nsubtasks = ["Answer it."]\naccess_list = [[]]'
QUESTION = "How many primes lie between 10 and 30? Éléments: 日本 <|user|> {x}"
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe helpful.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template with a system prompt of its own, of the kind that larger models have."""
FILE = """
[[workers]]
id = "a"
model = "m-a"
base_url = "{url}"
description = "Quick."

[[workers]]
id = "b"
model = "m-b"
base_url = "{url}"
price = {{ input = 1, output = 2 }}
strength = 0.7

[conductor]
provider = "vllm"
model = "conductor-7b"
base_url = "{url}"
card = "policy"
"""
RENDERINGS = [
    PromptOptions(descriptions=False),
    PromptOptions(descriptions=False, examples=False),
    PromptOptions(prices=True),
    PromptOptions(descriptions=False, compact=True),
]


def served_prompt(tokenizer, body):
    """The text that vLLM gives its model for this request."""
    return tokenizer.apply_chat_template(
        body["messages"],
        tokenize=False,
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_final_message=body.get("continue_final_message", False),
    )


@pytest.mark.parametrize("template", [None, CHATML], ids=["own", "chatml"])
@pytest.mark.parametrize("rendering", RENDERINGS, ids=["paper", "bare", "cards", "compact"])
async def test_serving_prompts_as_training_did(tmp_path, rendering, template):
    tokenizer = make_tokenizer([QUESTION, FLOW], 400)
    tokenizer.chat_template = template or tokenizer.chat_template
    (tmp_path / "policy").mkdir()
    ConductorCard(
        name="mine",
        rendering=rendering,
        temperature=0.0,
        max_tokens=300,
        rounds=2,
        workers=("a", "b"),
    ).write(tmp_path / "policy")
    async with (
        FakeOpenAI(FLOW, strict_openai=False, check=False) as server,
        HttpTransport() as http,
    ):
        (tmp_path / "batuta.toml").write_text(FILE.format(url=server.url))
        found = await load_config(http, pool=str(tmp_path / "batuta.toml"), environ={})
        await conduct(Question.of(QUESTION), found.conductor, found.pool, found.clients)
        body = server.requests[0].body
    task = Task(id=TaskId("t"), question=QUESTION, target="6", grader="integer")
    trained = render_chat_prompt(
        tokenizer, Episode(number=0, task=task, pool=found.pool, seed=1).request(rendering)
    )
    assert served_prompt(tokenizer, body).encode() == trained.encode()  # pyright: ignore[reportAttributeAccessIssue]
    assert (body["temperature"], body["max_tokens"]) == (0.0, 300), "the card's"
    assert found.conductor.rounds == 2  # pyright: ignore[reportAttributeAccessIssue]


def test_a_card_of_another_wording_is_refused():
    names_alone = PromptOptions(compact=True, descriptions=False)
    ConductorCard(name="mine", rendering=names_alone).check_prompt()
    with pytest.raises(ConfigError, match="compact-1 and this Batuta writes prompt compact-2"):
        ConductorCard(name="mine", rendering=PromptOptions(compact=True)).check_prompt()
    with pytest.raises(ConfigError, match="was trained on prompt 1 and this Batuta writes prompt"):
        ConductorCard(name="mine", rendering=PromptOptions()).check_prompt()
    with pytest.raises(ConfigError, match="compact-0"):
        ConductorCard(
            name="mine", rendering=PromptOptions(compact=True), prompt="compact-0"
        ).check_prompt()


def test_a_card_of_another_pool_is_refused():
    by_name = ConductorCard(name="mine", rendering=PromptOptions(compact=True), workers=("a", "b"))
    by_name.check_pool(["b", "z"])
    with pytest.raises(ConfigError, match="was trained on the workers a, b and the pool has z"):
        by_name.check_pool(["z"])
    by_number = ConductorCard(
        name="mine", rendering=PromptOptions(descriptions=False), workers=("a", "b")
    )
    by_number.check_pool(["a", "b"])
    with pytest.raises(ConfigError, match="use the pool of its training"):
        by_number.check_pool(["b", "a"])


def test_what_is_written_is_read_with_its_wording(tmp_path):
    ConductorCard(name="mine", rendering=PromptOptions(prices=True), workers=("a",)).write(tmp_path)
    read = ConductorCard.read(tmp_path)
    assert read.prompt == PromptOptions().version and read.workers == ("a",)
    read.check_prompt()


def test_an_old_card_that_is_written_again_keeps_its_first_prompt(tmp_path):
    """A merged or exported conductor got this version, and its check passed wrongly."""
    (tmp_path / "old").mkdir()
    ConductorCard(name="mine", rendering=PromptOptions()).write(tmp_path / "old")
    path = card_path(tmp_path / "old")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prompt": ""}))
    (tmp_path / "new").mkdir()
    ConductorCard.read(tmp_path / "old").write(tmp_path / "new")
    with pytest.raises(ConfigError, match="was trained on prompt 1"):
        ConductorCard.read(tmp_path / "new").check_prompt()
