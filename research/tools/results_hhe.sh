#!/usr/bin/env bash
# Makes the hybrid-HE reports under research/results; each report.json holds the command that made it.
set -euo pipefail
cd "$(dirname "$0")/../.."
. .venv/bin/activate
mnist=(--dataset mnist --data-dir "${DATA:-../shared/data}/mnist" --epochs 10)
fedcipher train --scheme pasta-bfv "${mnist[@]}" --bits 14 --target delta --out research/results/hhe-pasta-delta
fedcipher train --scheme plain "${mnist[@]}" --bits 14 --target delta --out research/results/hhe-plain-delta
fedcipher train --scheme bfv "${mnist[@]}" --bits 12 --target delta --out research/results/hhe-bfv-delta
# The study's own set-up: int8 weights clipped at 5, a local test part, a validation part and early stopping.
study=("${mnist[@]}" --test-share 0.2 --validation-share 0.2)
seal=(--set degree=16384)
int8=(--target weights --bits 8 --clip 5)
fedcipher train --scheme pasta-bfv "${study[@]}" "${int8[@]}" --out research/results/hhe-pasta-study
fedcipher-research train --scheme bfv-lib "${seal[@]}" "${study[@]}" "${int8[@]}" --out research/results/hhe-bfv-study
fedcipher train --scheme plain "${study[@]}" --target delta --bits 24 --out research/results/hhe-plain-study
# The study does not say how patient its early stopping is: one pass above, all ten here.
whole=("${study[@]}" --patience 10)
fedcipher train --scheme pasta-bfv "${whole[@]}" "${int8[@]}" --out research/results/hhe-pasta-patient
fedcipher-research train --scheme bfv-lib "${seal[@]}" "${whole[@]}" "${int8[@]}" --out research/results/hhe-bfv-patient
fedcipher train --scheme plain "${whole[@]}" --target delta --bits 24 --out research/results/hhe-plain-patient
