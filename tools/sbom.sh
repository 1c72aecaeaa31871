#!/usr/bin/env bash
# What the default wheel's native module and the engine's programs are made of, as CycloneDX, into the folder $1.
set -euo pipefail
out=$1
mkdir -p "$out"
for crate in fedcipher-python fedcipher-engine; do
    cargo cyclonedx --quiet --format json --spec-version 1.5 --no-build-deps --manifest-path "crates/$crate/Cargo.toml"
    mv "crates/$crate/$crate.cdx.json" "$out/"
done
# The core is in both; its own list says nothing more.
rm -f crates/*/*.cdx.json
