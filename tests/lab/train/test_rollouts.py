"""Completions are run by the engine, graded and rewarded, many at the same time."""

import anyio
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Outcome, Reply
from batuta.errors import ProviderOverloadedError
from batuta.lab.train.episodes import Episode
from batuta.lab.train.reward_function import rollout_metrics
from batuta.lab.train.rollouts import PolicyDraft
from batuta.lab.train.settings import RewardSettings
from lab.train.stage import FLUTE, ONE, POOL, SIX_TIMES_SEVEN, TWO, runner

EPISODE = Episode(number=0, task=SIX_TIMES_SEVEN, pool=POOL, seed=0)
STANDS = "model_id = []\nsubtasks = []\naccess_list = []"
AGAIN = 'model_id = ["oboe"]\nsubtasks = ["Repair it."]\naccess_list = [["all"]]'


async def run_drafts(among, *drafts, seeds=None):
    rows = [
        (EPISODE, draft if isinstance(draft, PolicyDraft) else PolicyDraft(text=draft))
        for draft in drafts
    ]
    return await among.run_drafts(rows, seeds or range(len(rows)), 0)


async def test_each_draft_earns_what_its_answer_is_worth():
    say = {
        FLUTE: ScriptedClient(lambda _: "42"),
        POOL.workers[1].id: ScriptedClient(lambda _: "41"),
    }
    wrong = ONE.replace("flute", "oboe")
    found = await run_drafts(runner(say), ONE, "I would ask the flute.", wrong, TWO)
    assert [each.reward for each in found] == [1.0, 0.0, 0.5, 1.0]
    assert [each.run.answer for each in found] == ["42", None, "41", "42"]
    assert [len(each.run.steps) for each in found] == [1, 0, 1, 2]
    assert found[1].grade is None and found[0].grade is not None


async def test_a_malformed_draft_keeps_its_tokens_and_costs_no_call():
    worker = ScriptedClient(lambda _: "42")
    (each,) = await run_drafts(
        runner({w.id: worker for w in POOL}),
        PolicyDraft(text="nonsense", prompt_tokens=70, tokens=30),
    )
    assert worker.requests == []
    assert (each.run.usage.input, each.run.usage.output) == (70, 30)


async def test_an_outage_is_nobodys_fault():
    say = runner(lambda _: ProviderOverloadedError("busy"))
    (each,) = await run_drafts(say, ONE)
    assert each.reward is None and each.run.outcome is Outcome.FAILED


async def test_nobody_steps_in_for_a_worker_whose_provider_is_down():
    say = {
        FLUTE: ScriptedClient(lambda _: ProviderOverloadedError("busy")),
        POOL.workers[1].id: ScriptedClient(lambda _: "42"),
    }
    (each,) = await run_drafts(runner(say), ONE)
    assert each.run.answer is None and each.reward is None


async def test_an_undecided_answer_earns_what_a_wrong_one_does():
    (each,) = await run_drafts(runner(lambda _: "42", judge=lambda _: None), ONE)
    assert each.reward == 0.5


async def test_several_executions_are_averaged_and_an_outage_among_them_is_left_out():
    said = iter(["42", "41", ProviderOverloadedError("busy"), ProviderOverloadedError("busy")])
    rewards = RewardSettings(executions=3)
    (each,) = await run_drafts(runner({w.id: ScriptedClient(lambda _: next(said)) for w in POOL},
                                   rewards=rewards), ONE)  # fmt: skip
    assert each.reward == pytest.approx(0.75)


@pytest.mark.parametrize(("by_ease", "paid"), [(0, 0.9), (1, 0.95), (2, 0.975)])
async def test_what_is_solved_anyway_shall_be_cheap_and_what_is_hard_may_cost(by_ease, paid):
    rewards = RewardSettings(cost="calls", unit=1, coefficient=0.1, by_ease=by_ease)
    say = {
        FLUTE: ScriptedClient(lambda _: "42"),
        POOL.workers[1].id: ScriptedClient(lambda _: "41"),
    }
    wrong = ONE.replace("flute", "oboe")
    found = await run_drafts(
        runner(say, rewards=rewards), ONE, ONE, wrong, "I would ask the flute."
    )
    assert [each.reward for each in found] == pytest.approx([paid, paid, 0.5, 0.0])


async def test_a_malformed_second_round_does_not_accept_the_first():
    say = runner({w.id: ScriptedClient(lambda _: "42") for w in POOL})
    first = PolicyDraft(text=ONE)
    drafts = [PolicyDraft(text=text, root=first) for text in (STANDS, AGAIN, "nonsense", "words")]
    figures = rollout_metrics(await run_drafts(say, *drafts))
    assert (figures["second/stands"], figures["valid"]) == (0.25, 0.5)


@pytest.mark.parametrize(("later", "paid"), [(None, 0.9), (0.02, 0.98), (0.0, 1.0)])
async def test_a_later_round_may_have_a_price_of_its_own(later, paid):
    rewards = RewardSettings(cost="calls", unit=1, coefficient=0.1, coefficient_later=later)
    say = {w.id: ScriptedClient(lambda _: "42") for w in POOL} | {
        FLUTE: ScriptedClient(lambda _: "41")
    }
    rows = [(EPISODE, PolicyDraft(text=ONE.replace("flute", "oboe")))]
    rows += [
        (EPISODE, PolicyDraft(text=each, root=PolicyDraft(text=ONE))) for each in (AGAIN, STANDS)
    ]
    found = await runner(say, rewards=rewards).run_drafts(rows, [0, 0, 0], 0)
    assert [each.reward for each in found] == pytest.approx([0.9, paid, 0.5])


async def test_groups_are_eased_apart_and_an_outage_is_in_none():
    rewards = RewardSettings(cost="calls", unit=1, coefficient=0.1, by_ease=1)
    say = {
        FLUTE: ScriptedClient(lambda _: "42"),
        POOL.workers[1].id: ScriptedClient(lambda _: "41"),
    }
    other = Episode(number=1, task=SIX_TIMES_SEVEN, pool=POOL, seed=0)
    among = runner(say, rewards=rewards)
    wrong = ONE.replace("flute", "oboe")
    rows = [
        (EPISODE, PolicyDraft(text=ONE)),
        (other, PolicyDraft(text=ONE)),
        (other, PolicyDraft(text=wrong)),
    ]
    rows += [
        (other, PolicyDraft(text=STANDS, root=PolicyDraft(text=ONE))),
        (other, PolicyDraft(text=AGAIN, root=PolicyDraft(text=ONE))),
    ]
    found = await among.run_drafts(rows, [0, 1, 2, 3, 3], 0)
    assert [each.reward for each in found] == pytest.approx([0.9, 0.95, 0.5, 1.0, 0.5])
    said = iter(["42", ProviderOverloadedError("busy")])
    shaky = runner({w.id: ScriptedClient(lambda _: next(said)) for w in POOL}, rewards=rewards)
    found = await run_drafts(shaky, ONE, ONE)
    assert sorted(each.reward or 0 for each in found) == pytest.approx([0.0, 0.9])


async def test_executions_and_rows_have_seeds_of_their_own():
    worker = ScriptedClient(lambda _: "42")
    among = runner({w.id: worker for w in POOL}, rewards=RewardSettings(executions=2))
    await run_drafts(among, ONE, ONE, seeds=[10, 20])
    assert len({request.sampling.seed for request in worker.requests}) == 4


class Counting:
    """A worker that knows how many calls it answers at the same time."""

    def __init__(self):
        self.now = self.most = 0

    async def complete(self, request, listener=None):
        self.now += 1
        self.most = max(self.most, self.now)
        await anyio.sleep(0.01)
        self.now -= 1
        return Reply(text="42")


@pytest.mark.parametrize("places", [1, 5, 40])
async def test_as_many_runs_as_allowed_are_executed_at_the_same_time(places):
    worker = Counting()
    found = await run_drafts(runner({w.id: worker for w in POOL}, concurrency=places), *[ONE] * 40)  # pyright: ignore[reportArgumentType]
    assert worker.most == places
    assert [each.reward for each in found] == [1.0] * 40


def asked(worker):
    return [(request.messages, request.sampling.seed) for request in worker.requests]


async def test_a_second_round_follows_its_first_exactly_as_it_was():
    first = ScriptedClient(lambda _: "41")
    await run_drafts(runner({w.id: first for w in POOL}), TWO, seeds=[7])
    both = ScriptedClient(lambda _: "41")
    second = PolicyDraft(text=AGAIN, root=PolicyDraft(text=TWO))
    (each,) = await run_drafts(runner({w.id: both for w in POOL}), second, seeds=[7])
    assert len(each.run.rounds) == 2
    assert asked(both)[:2] == asked(first)
    assert "<previous_round>" in both.requests[2].messages[0].text


@pytest.mark.parametrize(("answer", "earned"), [("42", 1.0), ("41", 0.5)])
async def test_letting_the_answer_stand_earns_what_the_answer_is_worth(answer, earned):
    worker = ScriptedClient(lambda _: answer)
    second = PolicyDraft(text=STANDS, root=PolicyDraft(text=ONE))
    (each,) = await run_drafts(runner({w.id: worker for w in POOL}), second)
    assert each.run.answer == answer and each.reward == earned
    assert len(worker.requests) == 1, "nobody is asked again"


async def test_a_malformed_second_round_earns_nothing():
    second = PolicyDraft(text="no lists", root=PolicyDraft(text=ONE))
    (each,) = await run_drafts(runner(lambda _: "42"), second)
    assert each.reward == 0.0
