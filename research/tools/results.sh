#!/usr/bin/env bash
# Makes every report under research/results; each report.json holds the command that made it.
set -euo pipefail
cd "$(dirname "$0")/../.."
. .venv/bin/activate
data=${DATA:-../shared/data}
mnist=(--dataset mnist --data-dir "$data/mnist")
for scheme in plain flashe bfv; do
  fedcipher train --scheme "$scheme" "${mnist[@]}" --out "research/results/mnist-$scheme"
done
fedcipher train --scheme flashe "${mnist[@]}" --target delta --top 0.1 --set masking=adaptive \
  --out research/results/mnist-flashe-top10
fedcipher train --scheme bfv --dataset digits --clients 12 --rounds 10 --out research/results/digits-bfv
