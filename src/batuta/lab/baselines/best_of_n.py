"""Best-of-N with a judge: another worker picks one of N samples of the best worker.

In Cobbe et al., "Training Verifiers to Solve Math Word Problems" (arXiv 2110.14168), section 4, a
verifier ranks N sampled solutions, and the first of the ranking is returned. Here a language model
is the verifier, as in Zheng et al., "Judging LLM-as-a-Judge" (arXiv 2306.05685), section 3.

Deviations
- The judge is not a trained verifier but the worker whose description recommends it most for
  judging, and it sees all samples in one call instead of scoring each.
- If the question shows tests that can be executed, no judge is asked. The first sample that passes
  the tests is returned, as AlphaCode filters samples (Li et al., arXiv 2203.07814, section 4.4). If
  no sample passes, the majority's answer is returned.
- The judge only chooses; the chosen sample is returned verbatim. The judge may name the sample by
  its step or repeat its answer. If the judge does neither, or its call fails, the majority's answer
  is returned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from batuta.conductors import FixedConductor
from batuta.core import Question, Reply, Run, Step, Workflow
from batuta.core.solver import RunTests
from batuta.engine.solver import SolverContext, round_replies, run_conductor, with_final_reply
from batuta.lab.baselines.answers import find_stated_answer, majority_reply, normalize_answer
from batuta.lab.baselines.parallel_answers import build_parallel_workflow, sample_best_worker
from batuta.lab.baselines.roles import JUDGING, best_worker_for_role
from batuta.lab.tasks.graders.question_tests import find_question_tests

JUDGE = (
    "Compare the solutions step by step and decide which one is right. Give its final answer, "
    'and end with a line "Best: N", where N is the step number of that solution.'
)
_BEST_LINE = re.compile(
    r"^[^\w\n]*+best\W++(?:step\W++|solution\W++)?(\d{1,3})\b", re.IGNORECASE | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class BestOfN:
    """Asks the pool's best worker N times, and another worker, if there is one, to judge."""

    samples: int = 5
    """The number N of samples."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"best-of-N needs at least one sample, not {self.samples}")

    @property
    def name(self) -> str:
        """The method and its N."""
        return f"best-of-{self.samples}"

    @property
    def calls(self) -> int:
        """The maximum number of calls: the samples and the judge's call."""
        return self.samples + 1

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Make N calls concurrently, and return the judge's choice or the majority's answer.

        No judge is asked if the tests that the question shows can be executed.
        """
        if context.run_tests is not None and find_question_tests(question.text) is not None:
            return await self._answer_by_tests(question, context, seed, context.run_tests)
        who = context.pool.ranked()[0].id
        judge = best_worker_for_role(context.pool, JUDGING, exclude=who)
        samples_first = build_parallel_workflow([who] * self.samples).steps
        everything = tuple(range(self.samples))
        flow = Workflow((*samples_first, Step(subtask=JUDGE, worker=judge, access=everything)))
        restricted = context.restrict_to(who, judge).with_sampling(who)
        run = await run_conductor(
            question,
            FixedConductor(self.name, lambda _: flow),
            context=restricted,
            seed=seed,
            max_steps=self.calls,
        )
        samples = round_replies(run)
        judgement = samples.pop(self.samples, None)
        chosen = find_judged_sample(judgement.text, samples) if judgement else None
        return with_final_reply(run, chosen or majority_reply(samples.values()))

    async def _answer_by_tests(
        self, question: Question, context: SolverContext, seed: int, run_tests: RunTests
    ) -> Run:
        """Return the first of N samples that passes the question's tests, else the majority's."""
        run = await sample_best_worker(self.name, question, context, seed, samples=self.samples)
        samples = list(round_replies(run).values())
        for reply in samples:
            if await run_tests(question.text, reply.text):
                return with_final_reply(run, reply)
        return with_final_reply(run, majority_reply(samples))


def find_judged_sample(judgement: str, samples: Mapping[int, Reply]) -> Reply | None:
    """Return the sample that the judge names by step or answer; None if it names none.

    Args:
        judgement: the text of the judge's reply.
        samples: the samples by the index of their step.
    """
    numbers = [int(number) for number in _BEST_LINE.findall(judgement)]
    if numbers and numbers[-1] in samples:
        return samples[numbers[-1]]
    answer = find_stated_answer(judgement)
    if answer is None:
        return None
    same = (
        reply
        for reply in samples.values()
        if normalize_answer(find_stated_answer(reply.text) or "") == normalize_answer(answer)
    )
    return next(same, None)
