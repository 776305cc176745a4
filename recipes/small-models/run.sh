#!/usr/bin/env bash
# The whole recipe from the repository's root: train, export, serve, tune, measure. BATUTA_PYTHON is .venv/bin/python
# unless it is set; SPECIALISTS, JUDGED and CALLS make it smaller for a busy machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${BATUTA_PYTHON:-.venv/bin/python}
batuta="$python -W ignore -m batuta"
here=recipes/small-models
out=runs/small-models
: "${SPECIALISTS:=coder:60 facts:60 letters:60 sums:60}" "${JUDGED:=300}" "${CALLS:=1600}"
mkdir -p "$out" "$here/adapters"

[ -f runs/smollm2/gguf.json ] || $batuta train import --gguf smollm2 --out runs/smollm2
for each in $SPECIALISTS; do
    name=${each%:*}
    [ -f "$out/$name/training.json" ] || $python -W ignore $here/train.py runs/smollm2 $out --only "$name" --steps "${each#*:}"
    [ -f "$here/adapters/$name.gguf" ] || $batuta train export "$out/$name" --like smollm2 --out "$here/adapters/$name.gguf"
done

$python $here/serve.py --port 8391 &
server=$!
trap 'kill $server' EXIT
until curl --silent --fail http://127.0.0.1:8391/health >/dev/null; do sleep 1; done

head -n "$JUDGED" $here/test.jsonl >"$out/asked.jsonl"
$batuta tune --pool $here/pool.toml --tasks $here/tune.jsonl --calls "$CALLS" --concurrency 4 --out "$out/tuned"
# calls that are the same in several systems are made once
measure() { $batuta eval --pool $here/pool.toml --tasks "$out/asked.jsonl" --journal "$out/calls.db" --concurrency 4 "$@"; }
workers=$(grep -o '^id = "[a-z]*"' $here/pool.toml | cut -d'"' -f2 | paste -sd,)
measure --systems "$workers,vote,oracle" --limit "$JUDGED" --out "$out/alone" --plots
measure --systems ultra --conductor 'chain/coder>python' --limit "$JUDGED" --out "$out/chain"
measure --systems ultra --conductor "$out/tuned/selector" --limit "$JUDGED" --out "$out/selected"
measure --systems ultra --conductor smol --limit "${PROMPTED:-40}" --out "$out/prompted"
measure --systems moa-8 --limit "${MOA:-100}" --out "$out/moa"
