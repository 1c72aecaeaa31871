#!/usr/bin/env bash
# The committed reports of the resource study: half an hour on two cores, with nothing else running.
set -euo pipefail
cd "$(dirname "$0")/../.."
fedcipher=.venv/bin/fedcipher-research
# As the resource study's machines: needs root, or control groups of one's own.
held=(--cpus 2 --memory 2GiB)
"$fedcipher" bench phe-vs-fhe --runs 10 "${held[@]}" --out research/results/phe-vs-fhe
"$fedcipher" bench fhe --runs 3 "${held[@]}" --out research/results/fhe
"$fedcipher" bench fedbit-table1 --runs 5 --out research/results/fedbit-table1
"$fedcipher" bench hhe-table --runs 3 --out research/results/hhe-table
"$fedcipher" bench flashe-table2 --runs 1 --out research/results/flashe-table2
"$fedcipher" bench round --schemes flashe,bfv,bfv-lib,ckks --values 100000 --clients 4 --runs 3 \
	--bandwidth 40mbit --latency 80ms --out research/results/wan
"$fedcipher" bench round --schemes tfhe --values 100 --clients 12 --runs 1 --out research/results/tfhe-100-values
for scheme in plain paillier bfv-lib ckks; do
	"$fedcipher" train --dataset digits --scheme "$scheme" --seed 1 --out "research/results/digits-$scheme"
done
