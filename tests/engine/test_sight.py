"""Pictures in workflows: who sees is shown them, and who cannot reads what a step has written that could."""

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import FixedConductor
from batuta.core import (
    Audio,
    Image,
    Message,
    PlanningContext,
    Pool,
    Question,
    Role,
    Sampling,
    Step,
    Text,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.engine import conduct
from batuta.engine.step_prompt import UNSEEN, give_sight
from batuta.language.prompt import PromptOptions, conductor_request

pytestmark = pytest.mark.anyio
PICTURE = Image(url="data:image/png;base64,AAAA")
ASKED = Question(
    messages=(Message(role=Role.USER, parts=(Text("What does the sign say?"), PICTURE)),)
)


def pool_of(**tags: str) -> Pool:
    return Pool(
        tuple(
            Worker(id=WorkerId(name), model=name, tags=tuple(filter(None, given.split())))
            for name, given in tags.items()
        )
    )


POOL = pool_of(eye="vision", mole="", owl="vision", python="program")


def flow(*steps: tuple[str, tuple[int, ...]]) -> Workflow:
    return Workflow(
        tuple(Step(subtask="Go.", worker=WorkerId(name), access=read) for name, read in steps)
    )


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((("eye", ()), ("mole", (0,))), None),
        ((("eye", ()), ("mole", ())), (("eye", ()), ("mole", (0,)))),
        ((("mole", ()), ("eye", ())), (("eye", ()), ("eye", ()))),
        ((("mole", ()),), (("eye", ()),)),
        ((("eye", ()), ("mole", (0,)), ("mole", (1,))), None),
        ((("eye", ()), ("owl", ()), ("mole", ())), (("eye", ()), ("owl", ()), ("mole", (0, 1)))),
        ((("eye", ()), ("python", ()), ("mole", (1,))), (("eye", ()), ("python", ()), ("mole", (0, 1)))),
        ((("eye", ()), ("python", (0,)), ("mole", (1,))), None),
        ((("stranger", ()), ("eye", ())), None),
    ],
)  # fmt: skip
def test_a_step_sees_or_reads_one_that_does(given, wanted):
    got = give_sight(flow(*given), ASKED, POOL)
    assert got == flow(*(wanted or given))
    assert give_sight(got, ASKED, POOL) == got


def test_without_a_picture_or_without_anybody_known_to_see_nothing_changes():
    blind = flow(("mole", ()), ("mole", ()))
    assert give_sight(blind, Question.of("What?"), POOL) is blind
    assert give_sight(blind, ASKED, pool_of(mole="", eye="")) is blind


async def test_a_text_only_worker_reads_what_a_vision_step_wrote():
    eye = ScriptedClient(lambda _: "It says STOP.")
    mole = ScriptedClient(lambda _: "Stop.")
    clients = {WorkerId("eye"): eye, WorkerId("mole"): mole}
    conductor = FixedConductor("by-test", lambda _: flow(("eye", ()), ("mole", ())))
    pool = pool_of(eye="vision", mole="")
    run = await conduct(ASKED, conductor, pool, clients)
    assert run.answer == "Stop."
    assert eye.requests[0].messages[-1].images == (PICTURE,)
    (told,) = mole.requests[0].messages
    assert not told.attachments and "It says STOP." in told.text and UNSEEN["image"] in told.text
    assert run.rounds[0].workflow == flow(("eye", ()), ("mole", (0,)))


async def test_a_recording_is_heard_and_read_in_the_same_way():
    ear = ScriptedClient(lambda _: "She says yes.")
    mole = ScriptedClient(lambda _: "Yes.")
    said = Message(role=Role.USER, parts=(Text("What?"), Audio(data="AAAA", format="wav")))
    conductor = FixedConductor("by-test", lambda _: flow(("ear", ()), ("mole", (0,))))
    pool = pool_of(ear="audio", mole="")
    clients = {WorkerId("ear"): ear, WorkerId("mole"): mole}
    await conduct(Question(messages=(said,)), conductor, pool, clients)
    assert ear.requests[0].messages[-1].attachments
    assert not mole.requests[0].messages[-1].attachments
    assert UNSEEN["audio"] in mole.requests[0].messages[-1].text


async def test_where_a_blind_worker_fails_one_that_sees_takes_its_step():
    eye = ScriptedClient(lambda _: "It says STOP.")
    mole = ScriptedClient(lambda _: "")
    conductor = FixedConductor("by-test", lambda _: flow(("eye", ()), ("mole", (0,))))
    pool = pool_of(eye="vision", mole="")
    run = await conduct(ASKED, conductor, pool, {WorkerId("eye"): eye, WorkerId("mole"): mole})
    assert run.answer == "It says STOP."
    assert eye.requests[-1].messages[-1].images == (PICTURE,)


def test_a_conductor_is_told_who_sees_nothing_only_where_it_matters():
    def prompt(question, pool):
        context = PlanningContext(question=question, pool=pool)
        return conductor_request(context, PromptOptions(), Sampling()).messages[0].text

    told = "not shown what is attached to the question: Model 1."
    assert told in prompt(ASKED, POOL)
    assert "not shown what is attached" not in prompt(Question.of("What?"), POOL)
    assert "not shown what is attached" not in prompt(ASKED, pool_of(a="vision", b="vision"))
    assert "not shown what is attached" not in prompt(ASKED, pool_of(a="", b=""))
