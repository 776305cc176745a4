#!/usr/bin/env bash
# The whole recipe on one GPU: run.sh's stages beside one another over engine.py, then conductor.sh for two seeds and their evaluations.
#
#     MODELS=FOLDER recipes/real-benchmarks/gpu.sh     # the folder with the three GGUF files
#
# What is not through after SECONDS_AT_MOST is ended; what was asked is kept (journals beside calls.db), and so is all that has a table.
set -uo pipefail
cd "$(dirname "$0")/../.."
here=recipes/real-benchmarks
out=runs/real-benchmarks
: "${MODELS:=$HOME/.cache/batuta/models}" "${SECONDS_AT_MOST:=3000}" "${SEEDS:=1 2}" "${PORT:=8080}"
export PYTHON=${PYTHON:-.venv/bin/python} SERVED=1 CONCURRENCY=${CONCURRENCY:-160} POOL=$out/pool-gpu.toml NICE=0
export OMP_NUM_THREADS=2 TOKENIZERS_PARALLELISM=false
mkdir -p "$out/logs"
sed 's/^concurrency = 8/concurrency = 256/' $here/pool.toml >"$POOL"

say() { echo "$(printf %4d "$SECONDS")s $*"; }
run() { # a stage's name and its log, then settings and stages of run.sh
    local log=$out/logs/$1.txt
    shift
    env "$@" $here/run.sh >"$log" 2>&1 || say "$log: ended with $?"
}
load() { curl --silent --fail -H 'content-type: application/json' -d "{\"name\": \"$1\", \"folder\": \"$2\"}" "http://127.0.0.1:$PORT/load" >/dev/null; }
conducted() { # name, folder: the trained conductor, served by the engine, conducts the judged and the unseen questions
    load "$1" "$2" || { say "$1 could not be served"; return; }
    { printf '[conductor]\nprovider = "llamacpp"\nbase_url = "http://127.0.0.1:%s/v1"\nmodel = "%s"\ncard = "%s"\n\n' "$PORT" "$1" "$2"; cat "$POOL"; } >"$out/pool-$1.toml"
    for part in judge unseen; do
        $PYTHON -W ignore -m batuta eval --pool "$out/pool-$1.toml" --tasks "$out/$part.jsonl" --journal "$out/$1-$part.db" \
            --concurrency "$CONCURRENCY" --systems ultra --limit 1000 --out "$out/$part-$1" >"$out/logs/$part-$1.txt" 2>&1 &
    done
    wait
    say "$1 is measured"
}
learn_to_conduct() { # seed
    local folder=$PWD/$out/conductor-$1
    export SEED=$1 EXTRA="--set pool.source=$POOL --set pool.journal=$out/grpo-$1.db ${GRPO:-}"
    STAGES=distil $here/conductor.sh >"$out/logs/distil-$1.txt" 2>&1 || { say "distilling $1 failed"; return; }
    say "conductor $1 is distilled"
    conducted "distilled-$1" "$folder/distilled" &
    STAGES=grpo $here/conductor.sh >"$out/logs/grpo-$1.txt" 2>&1 || { say "GRPO $1 ended early"; wait; return; }
    say "conductor $1 is reinforced"
    conducted "reinforced-$1" "$folder/policy"
    wait
}
everything() {
    run alone-judge STAGES=alone PARTS=judge JOURNAL=$out/judge.db &
    run alone-unseen STAGES=alone PARTS=unseen JOURNAL=$out/unseen.db &
    run learn STAGES=learn JOURNAL=$out/learn.db &
    run program-judge STAGES=program PARTS=judge JOURNAL=$out/program-judge.db &
    run program-unseen STAGES=program PARTS=unseen JOURNAL=$out/program-unseen.db &
    run dear STAGES=dear JOURNAL=$out/dear.db &
    run tune STAGES=tune JOURNAL=$out/tune.db
    say "tuned"
    [ -d "$out/tuned/selector" ] && {
        run tuned-judge STAGES=tuned PARTS=judge JOURNAL=$out/tuned-judge.db &
        run tuned-unseen STAGES=tuned PARTS=unseen JOURNAL=$out/tuned-unseen.db &
    }
    for seed in $SEEDS; do learn_to_conduct "$seed" & done
    wait
}

if ! curl --silent --fail "http://127.0.0.1:$PORT/health" >/dev/null; then
    $PYTHON $here/engine.py --port "$PORT" qwen-1.5b="$MODELS"/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf \
        qwen-0.5b="$MODELS"/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf smol="$MODELS"/SmolLM2-135M-Instruct.Q4_1.gguf >"$out/logs/engine.txt" 2>&1 &
    trap 'kill %1 2>/dev/null' EXIT
fi
until curl --silent --fail "http://127.0.0.1:$PORT/health" >/dev/null; do sleep 0.5; done
say "the models are served"
export -f say run load conducted learn_to_conduct everything
export here out POOL PORT SEEDS
(while sleep 15; do say "$(curl --silent http://127.0.0.1:$PORT/health)"; done) &
watch=$!
timeout --signal INT --kill-after 15 "$SECONDS_AT_MOST" bash -c everything
kill $watch
say "over"
