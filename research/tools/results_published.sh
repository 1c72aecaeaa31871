#!/usr/bin/env bash
# The studies of published experiments that no preset is: half an hour on two cores. flashe-wan and fednic make
# network namespaces, which takes root.
set -euo pipefail
cd "$(dirname "$0")/../.."
data=${DATA:-../shared/data}
study() {
	name=$1
	shift
	.venv/bin/fedcipher-research bench "$name" "$@" --out "research/results/$name"
}
study fedbit-packing --runs 1
study fedbit-round --runs 1 --data-dir "$data"
study flashe-accuracy --runs 1 --data-dir "$data"
study flashe-masks --runs 50
study flashe-sparse --runs 1
study flashe-unbatched --runs 5
study flashe-wan --runs 1 --data-dir "$data" --latency 80ms
study hhe-sweep --runs 1
study paillier-python --runs 5
FEDCIPHER_CONCRETE=$PWD/target/concrete/bin/python study tfhe-concrete --runs 3
# The paper does not say how fast its network is: a server's usual port is assumed.
study fednic --runs 2 --data-dir "$data" --bandwidth 1gbit
