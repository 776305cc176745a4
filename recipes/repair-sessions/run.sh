#!/usr/bin/env bash
# The recipe from the repository's root: fetches and serves the models, measures what the journal lacks, prints the table.
# MODELS names a server of the models that runs already; PROGRAMS, SYSTEMS and AT_ONCE make it smaller; PYTHON and NICE say others.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
: "${MODELS:=}" "${PROGRAMS:=78}" "${SYSTEMS:=}" "${AT_ONCE:=2}" "${OUT:=runs/repair-sessions}" "${PORT:=8080}" "${NICE:=19}"
if [ -z "$MODELS" ]; then
    $python -W ignore -m batuta local pull qwen-1.5b qwen-0.5b  # what is here already stays
    nice -n "$NICE" $python -W ignore -m batuta local serve qwen-1.5b qwen-0.5b --port "$PORT" &
    server=$!
    trap 'kill $server 2>/dev/null || true' EXIT
    MODELS=http://127.0.0.1:$PORT
    until curl --silent --fail "$MODELS/health" >/dev/null; do
        kill -0 $server 2>/dev/null || { echo "the server on port $PORT has ended; its last words stand above" >&2; exit 1; }
        sleep 1
    done
fi
nice -n "$NICE" "$python" -W ignore recipes/repair-sessions/measure.py --models "$MODELS" --programs "$PROGRAMS" \
    ${SYSTEMS:+--systems "$SYSTEMS"} --at-once "$AT_ONCE" --journal "$OUT/sessions.jsonl"
