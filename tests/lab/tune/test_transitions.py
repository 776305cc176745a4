"""What is learned of one workflow is known of the others that have a step in common with it."""

import numpy as np

from batuta.core import WorkerId
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.library import Candidate, CandidateStep, StepRole, can_stop, parts_of
from batuta.lab.tune.step_features import inputs_of
from batuta.lab.tune.transitions import Observations, TransitionModel
from batuta.usage import ASSUMED_PRICE
from lab.tune.worlds import VOTES, grade

ADA, BEN, CLEO = (WorkerId(name) for name in ("ada", "ben", "cleo"))


def chain(*steps):
    return Candidate(tuple(CandidateStep(StepRole(role), worker) for role, worker in steps))


def test_a_workflow_that_was_never_tried_is_foreseen_from_its_steps():
    rng = np.random.default_rng(0)
    seen, cells = Observations(), {}
    tried = chain(("solve", BEN), ("check", CLEO))
    right = np.zeros(3)
    for number in range(300):
        question = f"q{number}"
        cells[question] = (0, 0)
        ada, ben = rng.random(2) < (0.6, 0.4)
        seen.add(question, Candidate.single(ADA), float(ada))
        seen.add(question, Candidate.single(BEN), float(ben))
        good = float(ben or rng.random() < 0.75)
        right += (ada, ben, good)
        seen.add(question, tried, good)
    model = TransitionModel(seen, cells, 1)
    model.fit(tunes=True)
    asked = [Candidate.single(ADA), tried, chain(("solve", ADA), ("check", CLEO))]
    share = model.draw_shares(asked, 0).mean(axis=0)[:, 0]
    alone, ben, mended = right / 300
    rate = (mended - ben) / (1 - ben)
    assert abs(share[0] - alone) < 0.02 and abs(share[1] - mended) < 0.03
    assert abs(share[2] - (alone + (1 - alone) * rate)) < 0.08, "it mends the other's as often"


def test_it_learns_how_far_mistakes_coincide():
    rng = np.random.default_rng(1)
    found = {}
    for shared in (0.0, 0.9):
        seen, cells = Observations(), {}
        for number in range(250):
            question, same = f"q{number}", rng.random() < shared
            cells[question] = (0, 0)
            luck = rng.random(3) if not same else np.full(3, rng.random())
            for worker, roll in zip((ADA, BEN, CLEO), luck, strict=True):
                seen.add(question, Candidate.single(worker), float(roll < 0.65))
        model = TransitionModel(seen, cells, 1)
        model.fit(tunes=True)
        found[shared] = model.effect
    assert found[0.0] <= 0.5 and found[0.9] >= 2.0


def test_the_answers_on_the_way_and_those_a_step_begins_with():
    flow = chain(("plan", ADA), ("solve", BEN), ("solve", CLEO), ("decide", ADA), ("check", BEN))
    parts = [str(part) for part, _ in parts_of(flow)]
    assert parts == [
        "plan ada > solve ben", "plan ada > solve cleo",
        "plan ada > solve ben > solve cleo > decide ada",
    ]  # fmt: skip
    assert [str(one) for one in inputs_of(flow)] == parts[2:]
    assert [str(one) for one in inputs_of(inputs_of(flow)[0])] == parts[:2]
    assert inputs_of(chain(("plan", ADA), ("solve", BEN))) == (Candidate.single(BEN),)
    assert inputs_of(Candidate.single(BEN)) == ()


async def test_a_workflow_that_looks_at_its_answers_is_foreseen_with_its_calls():
    meter = CallMeter(ASSUMED_PRICE)
    runner = CandidateRunner(VOTES.pool, VOTES.clients(), grade, meter, unknown=ASSUMED_PRICE)
    steps = ("solve", ADA), ("solve", BEN), ("solve", CLEO), ("decide", ADA)
    whole = chain(*steps)
    looks = Candidate(whole.steps, stops=True)
    again = Candidate((*whole.steps[:2], whole.steps[0], whole.steps[3]), stops=True)
    assert not can_stop((whole.steps[0], *whole.steps[:1], whole.steps[3]))
    assert not can_stop((CandidateStep(StepRole.PLAN, ADA), *whole.steps))
    assert str(looks) == "solve ada > solve ben | solve cleo > decide ada"
    tasks, seen = VOTES.tasks(200), Observations()
    assert await runner.run_all((t, one) for t in tasks for one in (whole, looks, again))
    for task in tasks:
        for one in (whole, looks):
            result = runner.find_result(task, one)
            seen.add(task.id, one, result.score)  # pyright: ignore[reportArgumentType]
            seen.follow(task.id, one, result.trail, agreed=result.agreed)
            for part, score in result.parts:
                seen.add(task.id, part, score, on_the_way=True)
    model = TransitionModel(seen, {task.id: (0, 0) for task in tasks}, 1)
    model.fit(tunes=True)
    for one in (whole, looks, again):
        result = [runner.find_result(task, one) for task in tasks]
        share = float(np.mean([p.score for p in result]))  # pyright: ignore[reportArgumentType, reportCallIssue]
        assert abs(float(model.draw_shares([one], 0).mean()) - share) < 0.06, str(one)
        if one.stops:
            agreed = float(np.mean([p.agreed for p in result]))  # pyright: ignore[reportArgumentType, reportCallIssue]
            assert abs(float(model.agreement(one, 0)[0]) - agreed) < 0.06
            calls = sum(p.calls for p in result) / len(result)
            assert abs(calls - (4 - 2 * agreed)) < 1e-9


def test_an_outcome_on_the_way_gives_way_to_one_that_was_run():
    seen, one = Observations(), Candidate.single(ADA)
    seen.add("q", one, 0.0)
    seen.add("q", one, 1.0, on_the_way=True)
    assert seen.scores["q"][one] == 0.0
    seen.add("q", one, 1.0)
    assert seen.scores["q"][one] == 1.0


async def test_outcomes_that_came_one_after_the_other_say_what_they_say_together():
    meter = CallMeter(ASSUMED_PRICE)
    runner = CandidateRunner(VOTES.pool, VOTES.clients(), grade, meter, unknown=ASSUMED_PRICE)
    flows = [
        chain(("solve", ADA), ("check", BEN)),
        chain(("plan", CLEO), ("solve", ADA)),
        Candidate(chain(("solve", ADA), ("solve", BEN), ("decide", CLEO)).steps, stops=True),
    ]
    tasks = VOTES.tasks(90)
    cells = {task.id: (n % 2, n % 3) for n, task in enumerate(tasks)}
    assert await runner.run_all((t, one) for t in tasks for one in flows)
    seen = Observations()
    slowly = TransitionModel(seen, cells, 3)
    for one in flows:
        for task in tasks:
            result = runner.find_result(task, one)
            seen.add(task.id, one, result.score)  # pyright: ignore[reportArgumentType]
            seen.follow(task.id, one, result.trail, agreed=result.agreed)
            for part, score in result.parts:
                seen.add(task.id, part, score, on_the_way=True)
        slowly.fit()
    at_once = TransitionModel(seen, cells, 3)
    at_once.fit()
    names = [
        *(
            ("base", role, (right, 1))
            for role in (StepRole.CHECK, StepRole.PLAN)
            for right in (0, 1)
        ),
        ("base", StepRole.DECIDE, (1, 2)),
        ("own", flows[0], (1, 1)),
        ("pair", StepRole.CHECK, BEN, ADA, (0, 1)),
    ]
    for name in names:
        assert slowly.steps.weight_of(name) != 0
        assert abs(slowly.steps.weight_of(name) - at_once.steps.weight_of(name)) < 0.01
    for worker in (ADA, BEN):
        name = "w", worker
        assert abs(slowly.solvers.weight_of(name) - at_once.solvers.weight_of(name)) < 0.02
