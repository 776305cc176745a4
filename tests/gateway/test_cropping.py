"""What a conductor was not shown of a long conversation is said, and its workers get it all."""

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors.llm_conductor import LLMConductor
from batuta.core import Message, Question, Role, Text, Worker, WorkerId
from batuta.gateway.ui.run_view import describe_decision
from batuta.language.conversation import MAX_CHARACTERS, crop_conversation, question_text
from batuta.store import decode_run, encode_run
from gateway.live_server import HI, Serving, scripted_state, stored

pytestmark = pytest.mark.anyio
DRAFT = "model_id = [0]\nsubtasks = ['Answer.']\naccess_list = [[]]"
LONG = [
    {"role": role, "content": f"{turn} " + "x" * 3000}
    for turn in range(20)
    for role in ("user", "assistant")
] + [{"role": "user", "content": "And now?"}]


def app_state_of(store=None):
    ada = ScriptedClient(lambda _: "Done.")
    mind = ScriptedClient(lambda _: DRAFT)
    worker = Worker(id=WorkerId("mind"), model="m")
    conductor = LLMConductor(name="prompted/mind", client=mind, worker=worker)
    return scripted_state({"ada": ada}, conductor=conductor, store=store), ada, mind


@pytest.mark.parametrize("long", [True, False])
async def test_a_run_says_what_was_cropped(store, long):
    state, ada, mind = app_state_of(store)
    body = {"model": "batuta-ultra", "messages": LONG if long else HI}
    async with Serving(state) as server:
        status, _, got = await server.post(json=body)
        (row,) = await stored(store)
        run = await store.get(row.id)
    cropping = run.rounds[0].decision.draft.cropping
    assert status == 200
    assert decode_run(encode_run(run)) == run
    if not long:
        assert cropping is None
        assert "orchestration" not in got
        assert describe_decision(run.rounds[0]) == ""
        return
    assert cropping.shown <= MAX_CHARACTERS + 200 < cropping.whole
    assert cropping.turns > 0
    assert got["orchestration"]["cropped"] == {
        "shown_characters": cropping.shown,
        "characters": cropping.whole,
        "turns_left_out": cropping.turns,
    }
    assert f"without {cropping.turns} earlier turns" in describe_decision(run.rounds[0])
    assert (
        f"[{cropping.turns} earlier turns are left out; so they begin:]"
        in mind.requests[0].messages[-1].text
    )
    assert sum(len(m.text) for m in ada.requests[0].messages) > cropping.whole * 0.9


def question(*texts):
    return Question(messages=tuple(Message(role=Role.USER, parts=(Text(t),)) for t in texts))


def test_ends_are_kept():
    text, cropping = crop_conversation(question("begin" + "x" * 50_000 + "end"))
    assert text.startswith("begin")
    assert text.endswith("end")
    assert cropping.whole == 50_008
    assert cropping.shown == len(text) < cropping.whole
    assert crop_conversation(question("a", "b"))[1] is None
    assert question_text(question("a" * MAX_CHARACTERS)) == "a" * MAX_CHARACTERS
