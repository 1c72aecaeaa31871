#!/usr/bin/env bash
# Runs a command that compiles, so that the result does not depend on the folder, the user or the day.
# Dates are the commit's. Paths of this machine get fixed names, in Rust and in C.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd -P)
cargo_home=${CARGO_HOME:-$HOME/.cargo}
sysroot=$(rustc --print sysroot)

# A checkout has a last commit. A copy without git has the oldest date that a zip file can hold.
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git -C "$source" log -1 --format=%ct 2> /dev/null || echo 315532800)
fi
export SOURCE_DATE_EPOCH

rust=() c=()
name() {
    rust+=("--remap-path-prefix=$1=$2")
    c+=("-ffile-prefix-map=$1=$2")
}
# The compiler takes the last that fits: the source may lie in the home folder.
name "$sysroot" /rust
name "$cargo_home" /cargo
name "$source" /fedcipher
export RUSTFLAGS="${RUSTFLAGS:-} ${rust[*]}" CFLAGS="${CFLAGS:-} ${c[*]}" CXXFLAGS="${CXXFLAGS:-} ${c[*]}"
exec "$@"
