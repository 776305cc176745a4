#!/usr/bin/env bash
# The recipe from the repository's root: train what is missing, serve, tune, measure, draw. The defaults are the whole plan of
# README.md; JUDGED=120 CALLS=450 MINUTES=12 MOA=8 PROMPTED=3 is a short one. CONDUCTOR names the pretrained conductor's GGUF
# file (recipes/pretrained-conductor); without one that row is left out. PYTHON names another Python than that of .venv.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
batuta="$python -W ignore -m batuta"
here=recipes/small-models
out=runs/small-models
: "${SPECIALISTS:=coder:60 facts:60 sums:30}" "${JUDGED:=300}" "${CALLS:=1600}" "${MINUTES:=40}" "${PROMPTED:=40}" \
    "${MOA:=100}" "${CONDUCTED:=120}" "${CONDUCTOR:=runs/pretrained-world2-1/conductor.gguf}"
mkdir -p "$out" "$here/adapters"

[ -f runs/smollm2/gguf.json ] || $batuta train import --gguf smollm2 --out runs/smollm2
for each in $SPECIALISTS; do
    name=${each%:*}
    [ ! -f "$here/adapters/$name.gguf" ] || continue
    $python -W ignore $here/train.py runs/smollm2 $out --only "$name" --steps "${each#*:}"
    $batuta train export "$out/$name" --like smollm2 --out "$here/adapters/$name.gguf"
done

$python $here/serve.py --port 8391 &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
until curl --silent --fail http://127.0.0.1:8391/health >/dev/null; do
    kill -0 $server 2>/dev/null || { echo "the server on port 8391 has ended; its last words stand above" >&2; exit 1; }
    sleep 1
done

$batuta tune --pool $here/pool.toml --tasks $here/tune.jsonl --calls "$CALLS" --minutes "$MINUTES" \
    --stages calibrate,search,select --concurrency 4 --out "$out/tuned"
head -n "$JUDGED" $here/test.jsonl >"$out/asked.jsonl"
# calls that are the same in several systems are made once
measure() { $batuta eval --pool $here/pool.toml --tasks "$out/asked.jsonl" --journal "$out/calls.db" --concurrency 4 "$@"; }
measure --systems smol,coder,facts,sums,python,vote,oracle --limit "$JUDGED" --out "$out/alone"
measure --systems ultra --conductor 'chain/coder>python' --limit "$JUDGED" --out "$out/chain"
measure --systems ultra --conductor "$out/tuned/selector" --limit "$JUDGED" --out "$out/selected"
grep '"capital-letters"' "$out/asked.jsonl" >"$out/asked-capitals.jsonl"
$batuta eval --pool $here/pool.toml --tasks "$out/asked-capitals.jsonl" --journal "$out/calls.db" --concurrency 4 \
    --systems ultra --conductor 'chain/facts>coder>python' --out "$out/looked-up"
# these learn from the questions behind the 300
$batuta eval --pool $here/pool.toml --tasks $here/test.jsonl --journal "$out/calls.db" --concurrency 4 \
    --systems best-single,knn,avengers-pro,mini --limit "$JUDGED" --out "$out/routers"
measure --systems ultra --conductor smol --limit "$PROMPTED" --out "$out/prompted"
measure --systems ultra --conductor src/batuta/lab/worlds/policy --limit "$JUDGED" --out "$out/small"
[ ! -f "$CONDUCTOR" ] || measure --systems ultra --conductor "$CONDUCTOR" --limit "$CONDUCTED" --out "$out/pretrained"
# SmolLM2 learns what the tuning found, with two seeds, then from real workers; each is asked as one file
ask_policy() { # the row's name, the policy's folder
    $batuta train export "$2" --like smollm2 --out "$out/$1.gguf" --temperature 0
    measure --systems ultra --conductor "$out/$1.gguf" --limit "$JUDGED" --out "$out/$1"
}
for each in 1:taught 2:taught-2; do
    seed=${each%:*} policy=$out/conductor-${each%:*}
    [ -f "$policy/distilled/batuta.json" ] ||
        $batuta train distil --config $here/conductor.toml --seed "$seed" --out "$policy" --drafts "$out/tuned"
    ask_policy "${each#*:}" "$policy/distilled"
done
[ -f "$out/conductor-1/policy/batuta.json" ] || $batuta train conductor --config $here/conductor.toml
ask_policy reinforced "$out/conductor-1/policy"
$python recipes/pretrained-conductor/curves.py "$out/conductor-1" $here/conductor.svg
measure --systems moa-8 --limit "$MOA" --out "$out/moa"
$python $here/table.py "$out" --out $here
