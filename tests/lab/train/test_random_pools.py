"""GRPO alone, without rejection sampling, teaches a policy to call none but those listed."""

import json
from statistics import fmean

import pytest

from batuta.lab.train.conductor_training import train_conductor
from batuta.lab.worlds import shipped_policy_folder
from lab.train.stage import LEARNING, LIBRARIES, metrics, settings

pytestmark = LIBRARIES
STEPS = 16


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_grpo_teaches_random_pools(tmp_path, seed):
    """The shipped policy has met the whole pool only: it names workers who are absent."""
    told = settings(
        tmp_path,
        policy={"start": str(shipped_policy_folder())},
        pool={"fewest": 2, "most": 4, "permute": True},
        optimiser={**LEARNING, "steps": STEPS, "learning_rate": 1e-3},
        curriculum=[{"tasks": {"rehearsal": 1.0}}],
        seed=seed,
    )
    train_conductor(told, ["pytest"], lambda line: None)
    lines = metrics(tmp_path)
    first, last = lines[:3], lines[-3:]
    assert fmean(line["valid"] for line in last) > fmean(line["valid"] for line in first) + 0.1
    assert fmean(line["reward"] for line in last) > fmean(line["reward"] for line in first)
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert {len(sample["pool"]) for sample in samples} == {2, 3, 4}
    assert len({tuple(sample["pool"]) for sample in samples}) > STEPS
    absent = [s for s in samples if s["steps"] and any(  # a workflow that was run calls nobody else
        name in s["draft"] for name in {"flute", "oboe", "cello"} - set(s["pool"])
    )]  # fmt: skip
    assert not absent, "who is not listed is not called"
