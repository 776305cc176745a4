#!/usr/bin/env bash
# The recipe from the repository's root: an hour and a half of training on one core, then measuring; what is there already is not
# made again. SEED=2 makes the second policy, WORLD=rehearsal one for world 1; what follows the name is passed on to the stages of
# training, so run.sh --resume goes on after it was killed. PYTHON names another Python than that of .venv.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
batuta="$python -W ignore -m batuta"
here=recipes/pretrained-conductor
: "${SEED:=1}" "${WORLD:=world2}" "${PLANS:=120}" "${WORKERS:=9005}" "${MOST:=208}"
out=runs/pretrained-$WORLD-$SEED
rules=runs/rules-$WORLD.json
training="--config $here/conductor.toml --seed $SEED --out $out --set pool.source=$WORLD:1:300 --set curriculum=[{tasks={$WORLD=1.0}}]"
mkdir -p "$out"

[ -f runs/smollm2/gguf.json ] || $batuta train import --gguf smollm2 --out runs/smollm2
[ -f "$rules" ] || $python $here/rules.py "$rules" --world "$WORLD"
[ -f "$out/drafts.jsonl" ] || $python $here/drafts.py "$rules" "$out/drafts.jsonl" --world "$WORLD" --seed "$SEED"
[ -f "$out/warmup/batuta.json" ] || $batuta train warmup $training "$@"
[ -f "$out/distilled/batuta.json" ] || $batuta train distil $training --drafts "$out/drafts.jsonl" "$@"

$batuta train export "$out/distilled" --like smollm2 --out "$out/conductor.gguf" --temperature 0
for kind in trained wordings family; do
    $python -W ignore $here/serving.py "$out/conductor.gguf" --world "$WORLD" --workers "$WORKERS" --plans "$PLANS" \
        --most "$MOST" --kind $kind | tee "$out/served.$kind.json"
done
$python -W ignore $here/measure.py "$out/measured.json" --world "$WORLD" --workers "$WORKERS" --rules "$rules" \
    --policy "$out/distilled" --drafts "$PLANS" --most "$MOST"
$python $here/curves.py "$out" "$out/curves.svg"
