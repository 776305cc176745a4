"""Batuta's systems under inspect_ai, where it is installed."""

import pytest

from batuta import rehearsal

inspect_ai = pytest.importorskip("inspect_ai", reason="inspect_ai is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")


def evaluated(folder, model, count=6, **options):
    from inspect_ai.dataset import Sample  # pyright: ignore[reportMissingImports]
    from inspect_ai.scorer import includes  # pyright: ignore[reportMissingImports]
    from inspect_ai.solver import generate  # pyright: ignore[reportMissingImports]

    import batuta.evals.inspect  # noqa: F401 - it registers the provider

    tasks = rehearsal.draw_tasks("arithmetic", count, 3)
    samples = [Sample(input=task.question, target=task.target, id=str(task.id)) for task in tasks]
    task = inspect_ai.Task(dataset=samples, solver=generate(), scorer=includes())
    (log,) = inspect_ai.eval(
        task, model=model, model_args={"pool": "rehearsal", **options}, log_dir=str(folder),
        display="none", score_display=False,
    )  # fmt: skip
    return log


def test_a_system_answers_and_its_run_is_in_the_log(tmp_path):
    log = evaluated(tmp_path, "batuta/ultra", conductor="hand-written")
    assert log.status == "success", log.error
    outputs = [sample.output for sample in log.samples]
    assert {output.metadata["outcome"] for output in outputs} == {"answered"}
    for output in outputs:
        assert output.metadata["calls"] == len(output.metadata["steps"]) + 1
        assert output.usage.total_tokens > 0 and output.usage.total_cost > 0
    assert sum(sample.scores["includes"].value == "C" for sample in log.samples) >= 3


def test_a_worker_alone_is_a_system_too(tmp_path):
    log = evaluated(tmp_path, "batuta/oboe")
    assert [s.output.metadata["steps"] for s in log.samples] == [
        [{"worker": "oboe", "subtask": "", "reads": []}]
    ] * len(log.samples)


def test_an_unknown_system_is_told(tmp_path):
    log = evaluated(tmp_path, "batuta/opera", 1)
    assert log.status == "error" and "there is no system 'opera'" in log.error.message
