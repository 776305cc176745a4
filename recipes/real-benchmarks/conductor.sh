#!/usr/bin/env bash
# Qwen2.5-Coder-0.5B learns to conduct the pool of this recipe: distilled from the tuning's workflows, then GRPO on real answers, then one GGUF
# file that `batuta ask` conducts with. One GPU; after `STAGES="learn tune" run.sh`. None of it has been measured yet (RESULT.md).
#
#     recipes/real-benchmarks/conductor.sh --check     # what is missing, what it costs, how long; trains nothing, calls nobody
#     recipes/real-benchmarks/conductor.sh             # a stage that was cut off goes on where it was; SEED=2 for the second
#
# STAGES names what is run, in this order; PYTHON names another Python than that of .venv.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
batuta="$python -W ignore -m batuta"
here=recipes/real-benchmarks
out=runs/real-benchmarks
: "${SEED:=1}" "${STAGES:=import distil grpo export ask}"
policy=$out/conductor-$SEED
settings="--config $here/conductor.toml --seed $SEED --out $policy ${EXTRA:-}"

if [ "${1:-}" = --check ]; then
    exec $batuta train conductor $settings --check
fi
[ -d "$out/tuned" ] || { echo "there is no tuning in $out/tuned: STAGES=\"learn tune\" $here/run.sh" >&2; exit 1; }
for stage in $STAGES; do
    case $stage in
    import) [ -f "$out/qwen-0.5b/gguf.json" ] || $batuta train import --gguf "$($batuta local pull qwen-0.5b --yes)" --out "$out/qwen-0.5b" ;;
    distil) [ -f "$policy/distilled/batuta.json" ] || $batuta train distil $settings --drafts "$out/tuned" ;;
    grpo) # the models answer on port 8080: see run.sh; what the tuning has asked is in the journal and costs nothing
        [ -f "$policy/policy/batuta.json" ] ||
            $batuta train conductor $settings $(compgen -G "$policy/checkpoint-*" >/dev/null && echo --resume) ;;
    export)
        for each in distilled policy; do
            $batuta train export "$policy/$each" --like "$($batuta local pull qwen-0.5b --yes)" --out "$policy/$each.gguf" --temperature 0
        done ;;
    ask) $batuta ask "Lena packs 12 boxes of 8 pears and sells 30 pears. How many are left?" --pool $here/pool.toml --conductor "$policy/policy.gguf" ;;
    *) echo "no stage $stage" >&2; exit 2 ;;
    esac
done
