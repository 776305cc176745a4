"""Whom a draft may call: the names that are listed, and no other."""

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.conductors import LLMConductor
from batuta.core import Plan, PlanningContext, Question
from batuta.embedded.bpe import Tokenizer
from batuta.embedded.constrained_decoding import NameConstraint, NameTokens
from batuta.embedded.policy import open_policy
from batuta.lab.worlds import draw_tasks, rehearsal_pool, shipped_policy_folder
from batuta.language import conductor_request
from embedded import making

TOKENIZER = Tokenizer(json.loads(making.tokenizer().to_str()))
SPELLING = NameTokens(TOKENIZER)
LISTED = st.lists(st.text('"\\abé🙂\n 3-', max_size=6), min_size=1, max_size=4)
OPENED = b'model_id = ["'


def allowed(names):
    """The tokens that may come next; None: any."""
    kept = names.mask_logits(np.zeros(len(TOKENIZER), np.float32))
    return None if np.isfinite(kept).all() else np.flatnonzero(np.isfinite(kept)).tolist()


@given(LISTED, st.randoms(use_true_random=False))
def test_whatever_is_drawn_becomes_a_listed_name(listed, rng):
    names = NameConstraint(listed, SPELLING)
    names.append_text(OPENED)
    written = OPENED
    while (tokens := allowed(names)) is not None:
        drawn = TOKENIZER.token_bytes(rng.choice(tokens))
        names.append_text(drawn)
        written += drawn
        if written.count(b'", "') > 2:
            break
    rest = written.removeprefix(b"model_id = [").decode()
    assert json.JSONDecoder().raw_decode(rest)[0] in listed


@given(LISTED, st.data())
def test_every_listed_name_can_be_written_as_its_tokenizer_writes_it(listed, data):
    chosen = data.draw(st.sampled_from(listed))
    tokens = TOKENIZER.encode(f"{json.dumps(chosen, ensure_ascii=False)[1:]}]\n")
    names = NameConstraint(listed, SPELLING)
    names.append_text(OPENED)
    for token in tokens:
        free = allowed(names)
        assert free is None or token in free
        names.append_text(TOKENIZER.token_bytes(token))


@pytest.mark.parametrize(
    "written",
    [
        b"", b"model_id", b"model_id = [", b"model_id = [0, ", b'subtasks = ["', b'["tuba", "',
        b'model_id = ["tuba"]\naccess_list = [["', b'model_id = ["tuba", 2, "',
    ],
)  # fmt: skip
def test_nothing_else_is_barred(written):
    names = NameConstraint(["tuba", "viola"], SPELLING)
    names.append_text(written)
    assert allowed(names) is None


@pytest.mark.parametrize(
    "written", [OPENED, b'model_id = ["a", "b",\n "', b'x\nmodel_id = ["a", "']
)
def test_a_name_is_begun_at_any_place_of_the_list(written):
    names = NameConstraint(["tuba", "viola"], SPELLING)
    names.append_text(written)
    begins = {TOKENIZER.token_bytes(token)[:1] for token in allowed(names)}
    assert begins == {b"t", b"v"}


def test_a_name_that_nobody_has_is_left_as_it_is():
    names = NameConstraint(["tuba"], SPELLING)
    names.append_text(b'model_id = ["vio')
    assert allowed(names) is None


async def test_the_shipped_conductor_calls_nobody_who_is_not_there():
    """It has met the whole pool only: without this most of its workflows could not be run."""
    model, card, name = open_policy(shipped_policy_folder())
    conductor = LLMConductor(
        name=name, client=model, rendering=card.rendering, sampling=card.sampling
    )
    free = 0
    for number, task in enumerate(draw_tasks(None, 25, 11)):
        rng = Random(number)
        few = (
            rehearsal_pool()
            .subset(worker.id for worker in rng.sample(rehearsal_pool().workers, 3))
            .shuffled(rng)
        )
        context = PlanningContext(question=Question.of(task.question), pool=few, seed=number)
        drafted = await conductor.plan(context)
        assert isinstance(drafted, Plan), drafted
        assert all(step.worker in few for step in drafted.workflow.steps)
        request = conductor_request(context, card.rendering, card.sampling)
        said = (await model.complete(replace(request, names=()))).text
        free += any(f'"{worker.id}"' in said for worker in rehearsal_pool() if worker.id not in few)
    assert free > 10


async def test_with_everybody_there_it_writes_what_it_would_anyway():
    model, card, _ = open_policy(shipped_policy_folder())
    for task in draw_tasks(None, 20, 12):
        context = PlanningContext(question=Question.of(task.question), pool=rehearsal_pool())
        request = conductor_request(context, card.rendering, card.sampling)
        assert request.names == tuple(worker.id for worker in rehearsal_pool())
        free = await model.complete(replace(request, names=()))
        assert await model.complete(request) == free
