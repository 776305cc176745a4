"""How a training tells how far it is where no bar can be drawn."""

import os

WARMUP = """
output = "{folder}"
[policy.network]
vocabulary = 400
hidden = 16
layers = 1
heads = 2
kv_heads = 2
inner = 16
[warmup]
steps = 20
batch = 2
revisions = 0.0
"""


def test_a_log_has_a_line_at_every_tenth_of_the_way(tmp_path, training_line):
    config = tmp_path / "training.toml"
    config.write_text(WARMUP.format(folder=tmp_path / "run"))
    done = training_line.run(
        "train", "warmup", "--config", str(config), cwd=tmp_path, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("SFT warm-up  ")]
    assert [line.split()[2] for line in told] == [f"{2 * n}/20" for n in range(1, 11)]
    assert all("nats a token" in line for line in told)
