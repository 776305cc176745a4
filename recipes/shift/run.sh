#!/usr/bin/env bash
# The whole demonstration: retrain after the shift, draw the curves, measure, fill RESULT.md.
# recipes/shift/run.sh [FOLDER OF THE POLICY TO START FROM]
set -euo pipefail
cd "$(dirname "$0")/../.."
start=${1:-src/batuta/lab/worlds/policy}
.venv/bin/batuta train rejection --config recipes/shift/shift.toml --set "policy.start=$start"
.venv/bin/batuta train conductor --config recipes/shift/shift.toml
.venv/bin/batuta train plots runs/shift --out runs/shift/plots
cp runs/shift/plots/reward.png recipes/shift/reward.png
.venv/bin/python recipes/shift/table.py --start "$start" --policy runs/shift/policy --write
