#!/usr/bin/env bash
# Everything in RESULT.md: three seeds from nothing, what is trained on from the first, and all the figures.
# The long stage of a seed is divided between two processes: two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=recipes/rehearsal-conductor
conduct=(.venv/bin/torchrun --standalone --nproc-per-node 2 -m batuta train conductor)
for seed in 1 2 3; do
    to=(--config $here/conductor.toml --seed $seed --out runs/rehearsal/seed-$seed)
    .venv/bin/batuta train warmup "${to[@]}"
    .venv/bin/batuta train rejection "${to[@]}"
    "${conduct[@]}" "${to[@]}"
done
.venv/bin/batuta train rejection --config $here/pools.toml
.venv/bin/batuta train conductor --config $here/brief.toml
.venv/bin/batuta train conductor --config $here/correcting.toml
.venv/bin/batuta train rejection --config $here/recursion.toml
.venv/bin/batuta train conductor --config $here/recursion.toml
.venv/bin/batuta train plots runs/rehearsal/seed-{1,2,3} --out runs/rehearsal/plots
.venv/bin/python $here/measure.py runs/rehearsal runs/rehearsal/measured
