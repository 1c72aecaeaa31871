#!/usr/bin/env bash
# FedBit's and FLASHE's training, of fewer rounds than theirs: half an hour on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
. .venv/bin/activate
data=${DATA:-../shared/data}
fedbit=(--scheme bfv --set preset=fedbit-paper --clients 10 --per-round 5 --optimiser adam)
fedbit+=(--learning-rate 0.01 --learning-rate-end 1e-6)
mnist=("${fedbit[@]}" --dataset mnist --data-dir "$data/mnist" --model lenet5 --rounds 10)
cifar10=("${fedbit[@]}" --dataset cifar10 --data-dir "$data/cifar10" --bits 12 --rounds 5)
fedcipher train "${mnist[@]}" --bits 12 --out research/results/fedbit-mnist
fedcipher train "${mnist[@]}" --bits 8 --out research/results/fedbit-mnist-8
fedcipher train "${mnist[@]}" --bits 6 --out research/results/fedbit-mnist-6
fedcipher train "${mnist[@]}" --bits conv=10,6 --out research/results/fedbit-mnist-layers
fedcipher train "${mnist[@]}" --bits 12 --dirichlet 0.5 --out research/results/fedbit-mnist-skewed
fedcipher train "${cifar10[@]}" --out research/results/fedbit-cifar10
fedcipher train "${cifar10[@]}" --dirichlet 0.5 --out research/results/fedbit-cifar10-skewed
flashe=(--scheme flashe --bits 16 --clients 10 --per-round 10 --batch 128 --optimiser adam)
fedcipher train "${flashe[@]}" --dataset shakespeare --data-dir "$data/shakespeare" --model gru-0.66m \
	--learning-rate 0.01 --rounds 10 --out research/results/flashe-gru
fedcipher train "${flashe[@]}" --dataset mnist --data-dir "$data/mnist" --model cnn-1.2m --learning-rate 5e-4 \
	--rounds 2 --out research/results/flashe-cnn
fedcipher train "${flashe[@]}" --dataset cifar10 --data-dir "$data/cifar10" --learning-rate 1e-4 --rounds 5 \
	--out research/results/flashe-resnet
