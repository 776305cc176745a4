"""The examples for real providers, run as they stand against loopback servers of their dialect.

The servers check what they receive as strictly as the providers do.
"""

from functools import partial
from pathlib import Path

import anyio
import pytest

from fakes import FakeAnthropic, FakeGemini, FakeOpenAI, Said
from fakes.environ import clean_environ
from fakes.server import KEY

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run_example(command_line, tmp_path):
    return partial(said_by, command_line, tmp_path)


async def said_by(command_line, folder, name, **environ):
    """What the example prints on stdout."""
    own = {"BATUTA_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}  # where nothing was pulled
    env = clean_environ("AWS", "AZURE", **environ, **own)
    run = partial(command_line.run_file, EXAMPLES / name, env=env, cwd=folder)
    done = await anyio.to_thread.run_sync(run)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_an_openai_compatible_server_streams(run_example):
    async with FakeOpenAI("The capital of France is Paris.", strict_openai=False) as server:
        server.models = [{"id": "my-model"}]
        said = await run_example(
            "04_openai_compatible.py", OPENAI_API_KEY=KEY, OPENAI_BASE_URL=server.url
        )
        assert not server.wrong and server.requests[-1].body["stream"]
    assert "workers: " in said and "The capital of France is Paris.\n<Run " in said


def use_tool(body):
    """The function first, then what to make of its result."""
    if any(part.get("type") == "tool_result" for m in body["messages"] for part in m["content"]
           if isinstance(part, dict)):  # fmt: skip
        return "No: 18 degrees and sunny."
    return Said(calls=(("toolu_1", "read_weather", {"city": "Lisbon"}),))


async def test_anthropic_calls_the_function(run_example):
    async with FakeAnthropic(use_tool) as server:
        said = await run_example(
            "05_anthropic.py", ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=server.origin
        )
        assert not server.wrong and len(server.requests) == 2
    assert 'called: read_weather {"city": "Lisbon"}' in said.replace('":"', '": "')
    assert "No: 18 degrees and sunny." in said and "cost of all runs: 0.0" in said


async def test_gemini_sees_the_picture(run_example):
    async with FakeGemini("Red.") as server:
        said = await run_example("06_gemini.py", GEMINI_API_KEY=KEY, GEMINI_BASE_URL=server.url)
        assert not server.wrong
        assert "inlineData" in str(server.requests[-1].body)
    assert said.startswith("Red.\n<Run ")


async def test_ollama_answers_many_questions_for_nothing(run_example):
    async with FakeOpenAI("Rome", strict_openai=False, check=False) as server:
        server.tags = ["llama3.2"]
        said = await run_example("07_ollama.py", OLLAMA_HOST=server.host)
        assert len(server.requests) == 4
    assert "Italy: Rome\n" in said and said.endswith("cost of all runs: 0\n")


@pytest.mark.parametrize("name", [path.name for path in sorted(EXAMPLES.glob("0[4-7]_*.py"))])
async def test_without_a_key_one_sentence_says_what_to_set(name, run_example):
    with pytest.raises(AssertionError, match="no model was found: set OPENAI_API_KEY"):
        await run_example(name)
