#!/usr/bin/env bash
# Makes the hybrid-HE reports under docs/results; each report.json holds the command that made it.
set -euo pipefail
cd "$(dirname "$0")/.."
. .venv/bin/activate
mnist=(--dataset mnist --data-dir "${DATA:-../shared/data}/mnist" --epochs 10)
fedcipher train --scheme pasta-bfv "${mnist[@]}" --bits 14 --target delta --out docs/results/hhe-pasta-delta
fedcipher train --scheme plain "${mnist[@]}" --bits 14 --target delta --out docs/results/hhe-plain-delta
fedcipher train --scheme pasta-bfv "${mnist[@]}" --bits 8 --clip 5 --target weights --out docs/results/hhe-pasta-published
fedcipher train --scheme bfv "${mnist[@]}" --bits 12 --target delta --out docs/results/hhe-bfv-delta
