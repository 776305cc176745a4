"""Questions that were served, with the answers that people called right, as training tasks."""

from __future__ import annotations

from hashlib import blake2b

from batuta.baselines import final
from batuta.core import Run, Task, TaskId
from batuta.errors import ConfigError
from batuta.evals.marking import is_integer
from batuta.store import Store

GOOD = 0.99
"""A feedback score from which on an answer counts as right."""
PAGE = 500


async def served_tasks(target: str) -> list[Task]:
    """A task for every stored question with an answer that was scored as right.

    The answer's last line is the target; questions whose answers were all scored as wrong teach
    nothing that could be checked, and conversations of several turns are left out.

    Args:
        target: the store, as `batuta runs` takes it.

    Raises:
        ConfigError: no stored run can be learned from.
        StoreError: the store cannot be read.
    """
    best: dict[str, tuple[float, Run]] = {}
    async with Store.open(target) as store:
        before: str | None = None
        while page := await store.list(PAGE, before):
            before = page[-1].cursor
            for summary in page:
                if summary.score is None or summary.score < GOOD:
                    continue
                run = await store.get(summary.id)
                if run is None or run.answer is None or len(run.header.question.messages) > 1:
                    continue
                text = run.header.question.text
                if text not in best or best[text][0] < summary.score:
                    best[text] = (summary.score, run)
    tasks = [task for text, (_, run) in best.items() if (task := _task(text, run)) is not None]
    if not tasks:
        raise ConfigError(
            f"no run in {target} was scored {GOOD:g} or more, so there is nothing to learn from; "
            "score answers with POST /v1/runs/ID/feedback"
        )
    return tasks


def _task(text: str, run: Run) -> Task | None:
    target = final(run.answer or "")
    if not target:
        return None
    digest = blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
    grader = "integer" if is_integer(target) else "exact"
    return Task(TaskId(f"served-{digest}"), text, target, grader, ("served",))
