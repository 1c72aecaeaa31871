#!/usr/bin/env bash
# FedBit's and FLASHE's training, of fewer rounds than theirs: half an hour on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
. .venv/bin/activate
data=${DATA:-../shared/data}
fedbit=(--scheme bfv --set preset=fedbit-paper --bits 12 --clients 10 --per-round 5 --optimiser adam)
fedbit+=(--learning-rate 0.01 --learning-rate-end 1e-6)
fedcipher train "${fedbit[@]}" --dataset mnist --data-dir "$data/mnist" --model lenet5 --rounds 10 \
	--out docs/results/fedbit-mnist
fedcipher train "${fedbit[@]}" --dataset cifar10 --data-dir "$data/cifar10" --rounds 5 --out docs/results/fedbit-cifar10
flashe=(--scheme flashe --bits 16 --clients 10 --per-round 10 --batch 128 --optimiser adam)
fedcipher train "${flashe[@]}" --dataset shakespeare --data-dir "$data/shakespeare" --learning-rate 0.01 --rounds 3 \
	--out docs/results/flashe-gru
fedcipher train "${flashe[@]}" --dataset mnist --data-dir "$data/mnist" --model cnn-1.2m --learning-rate 5e-4 \
	--rounds 2 --out docs/results/flashe-cnn
