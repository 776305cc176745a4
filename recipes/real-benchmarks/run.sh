#!/usr/bin/env bash
# The recipe from the repository's root. A stage that was cut off goes on where it was: its calls are in the journal.
# STAGES names what is run, in this order; PYTHON names another Python than that of .venv. SERVED=1: the models are served on port 8080
# already. JOURNAL, POOL, CONCURRENCY, PARTS (judge, unseen) and NICE say other ones.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
batuta="nice -n ${NICE:-19} $python -W ignore -m batuta"
here=recipes/real-benchmarks
out=runs/real-benchmarks
: "${STAGES:=learn tune alone program tuned dear}" "${CALLS:=6000}" "${DEAR:=240}" "${CONCURRENCY:=16}" "${POOL:=$here/pool.toml}"
: "${JOURNAL:=$out/calls.db}" "${SERVED:=}" "${PARTS:=judge unseen}"
mkdir -p "$out"

[ -f "$out/judge.jsonl" ] || $python $here/questions.py write "$out"
if [ -z "$SERVED" ]; then
    [ -f "$JOURNAL" ] || $python $here/journal.py unpack "$JOURNAL" # what was asked before
    $batuta local serve qwen-1.5b qwen-0.5b smol --port 8080 &
    server=$!
    trap 'kill $server 2>/dev/null || true' EXIT
    until curl --silent --fail http://127.0.0.1:8080/health >/dev/null; do
        kill -0 $server 2>/dev/null || { echo "the server on port 8080 has ended; its last words stand above" >&2; exit 1; }
        sleep 1
    done
fi

measure() { # a part of the questions, then options; a call that several systems share is made once
    local part=$1
    shift
    $batuta eval --pool "$POOL" --tasks "$out/$part.jsonl" --journal "$JOURNAL" --concurrency "$CONCURRENCY" "$@"
}
for stage in $STAGES; do
    case $stage in
    learn) # every worker alone on what is learned from: calibration of the routers, and a part of the tuning's calls
        measure learn --systems qwen-1.5b,qwen-0.5b,smol --limit 600 --out "$out/learn" ;;
    tune)
        $batuta tune --pool "$POOL" --tasks "$out/learn.jsonl" --calls "$CALLS" --concurrency "$CONCURRENCY" --no-rewrite \
            --journal "$JOURNAL" --out "$out/tuned" ;;
    alone)
        for part in $PARTS; do
            measure $part --systems qwen-1.5b,qwen-0.5b,smol,vote,oracle --limit 1000 --out "$out/$part-alone"
        done ;;
    program)
        for part in $PARTS; do
            measure $part --systems ultra --conductor $here/program.txt --limit 1000 --out "$out/$part-program"
        done ;;
    tuned)
        for part in $PARTS; do
            measure $part --systems ultra --conductor "$out/tuned/selector" --limit 1000 --out "$out/$part-tuned"
        done ;;
    dear) # five to eight calls a question: the first DEAR questions, 40 of each set
        measure judge --systems self-consistency,self-reflection,moa-8 --limit "$DEAR" --out "$out/judge-dear" ;;
    *) echo "no stage $stage" >&2; exit 2 ;;
    esac
done
