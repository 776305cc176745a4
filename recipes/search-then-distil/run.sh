#!/usr/bin/env bash
# Search, then distil, in the rehearsal (simulated workers): one seed, its calls counted at the end.
#   recipes/search-then-distil/run.sh SEED
set -euo pipefail
cd "$(dirname "$0")/../.."
seed=${1:-1}
batuta=${BATUTA:-.venv/bin/batuta}
out=runs/search-then-distil/seed-$seed
tuned=runs/search-then-distil/tuned-$seed
to=(--config recipes/search-then-distil/conductor.toml --seed "$seed" --out "$out")
$batuta tune --pool rehearsal --tasks rehearsal --calls 24000 --seed "$seed" \
    --stages calibrate,search,select --no-rewrite --out "$tuned"
$batuta train warmup "${to[@]}"
$batuta train conductor "${to[@]}" --from "$tuned"
for stage in distilled policy; do
    $batuta eval --pool rehearsal --tasks rehearsal --limit 1000 --systems best-single,ultra \
        --conductor "$out/$stage" --out "runs/search-then-distil/measured-$seed-$stage"
done
${PYTHON:-.venv/bin/python} recipes/search-then-distil/count.py "$seed"
