#!/usr/bin/env bash
# The table of docs/contributor/release.md: what each set of features brings into this machine's wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
host=$(rustc -vV | sed -n 's/^host: //p')
echo "| features | other crates in the build | wheel, MB |"
echo "|---|---|---|"
for features in "" hhe engine-client engine-client,hhe; do
    crates=$(cargo tree --package fedcipher-python --features "$features" --edges normal,build --prefix none --target "$host" |
        sed 's/ (.*//' | grep -v '^fedcipher-' | sort -u | wc -l)
    rm -f "$out"/*
    maturin build --release --quiet --out "$out" --features "$features" 2> /dev/null
    size=$(stat -c %s "$out"/*.whl)
    echo "| ${features:-none (the default)} | $crates | $(awk "BEGIN { printf \"%.1f\", $size / 1e6 }") |"
done
