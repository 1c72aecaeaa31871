#!/usr/bin/env bash
# The core's secret-dependent code under valgrind, as a processor with AVX2 and ADX runs it and as one without AVX
# (crates/fedcipher-core/examples/constant_time.rs). Fails where a branch or an index depends on a secret.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS='--cfg constant_time --cfg getrandom_backend="custom"' CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
cargo build --release --quiet -p fedcipher-core --example constant_time --target-dir target/constant-time
program=target/constant-time/release/examples/constant_time
address() { nm "$program" | awk -v name="$1" '$3 ~ name { print "0x" $1; found = 1 } END { exit !found }'; }
# Where std keeps what the processor has, from a function of the program's own on.
kept=$(address 'std_detect.*cache5CACHE$') own=$(address '^fedcipher_declassify$')
for processor in avx2 sse4; do
	log=target/constant-time/$processor.log
	echo "$processor:"
	RAYON_NUM_THREADS=1 valgrind --quiet --error-limit=no --read-inline-info=yes --num-callers=40 --log-file="$log" \
		--suppressions=tools/constant_time.supp "$program" "$processor" $((kept - own)) || { cat "$log"; exit 1; }
done
