"""Other people's clients, unchanged, against `batuta serve`."""

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

from fakes.sdks import anthropic

QUESTION = "Compute the result: begin at 45; square it; double it."


@pytest.fixture(scope="module")
def claude(url):
    base = url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=base, api_key="none", max_retries=0) as client:
        yield client


def turns(text=QUESTION):
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("model", ["batuta-mini", "batuta-ultra", "worker/cello"])
def test_anthropic_whole(claude, model):
    got = claude.messages.create(model=model, max_tokens=500, messages=turns())
    assert got.content[0].text and got.stop_reason == "end_turn"


def test_anthropic_streamed_with_progress(claude):
    with claude.messages.stream(
        model="batuta-ultra",
        max_tokens=10_000,
        messages=turns(),
        thinking={"type": "enabled", "budget_tokens": 9_000},
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert "4050" in text and final.content[0].thinking.startswith("Plan: ")
    assert final.usage.output_tokens > 0


def test_anthropic_counts_and_errs(claude):
    assert claude.messages.count_tokens(model="batuta-mini", messages=turns()).input_tokens > 5
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="nobody", max_tokens=5, messages=turns())


def langchain(url, **options):
    return ChatOpenAI(model="batuta-ultra", base_url=url, api_key="none", **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("responses", [False, True])
def test_langchain_whole_streamed_and_batched(url, responses):
    model = langchain(url, use_responses_api=responses)
    said = model.invoke([SystemMessage("Be exact."), HumanMessage(QUESTION)])
    assert "4050" in said.text and said.usage_metadata["total_tokens"] > 0
    chunks = list(model.stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert "4050" in whole.text
    assert all("4050" in one.text for one in model.batch([QUESTION, QUESTION]))
    again = [HumanMessage(QUESTION), AIMessage(said.text), HumanMessage(QUESTION)]
    assert "4050" in model.invoke(again).text
