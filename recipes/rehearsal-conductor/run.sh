#!/usr/bin/env bash
# Everything in RESULT.md: the seeds from nothing, the two further trainings, and all the figures.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=recipes/rehearsal-conductor
for seed in 1 2 3; do
    for stage in warmup rejection conductor; do
        .venv/bin/batuta train $stage --config $here/conductor.toml \
            --seed $seed --out runs/rehearsal/seed-$seed
    done
    from=runs/rehearsal/seed-$seed
    for stage in deeper leaner; do
        .venv/bin/batuta train conductor --config $here/$stage.toml --seed $seed \
            --set policy.start=$from/policy --out runs/rehearsal/seed-$seed/$stage
        from=runs/rehearsal/seed-$seed/$stage
    done
done
.venv/bin/batuta train conductor --config $here/pools.toml
.venv/bin/batuta train rejection --config $here/recursion.toml
.venv/bin/batuta train conductor --config $here/recursion.toml \
    --set policy.start=runs/rehearsal/recursion/rejection
.venv/bin/batuta train plots runs/rehearsal/seed-1
.venv/bin/python $here/measure.py runs/rehearsal runs/rehearsal/measured
