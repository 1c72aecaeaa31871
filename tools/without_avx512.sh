#!/usr/bin/env bash
# Runs a program as on a processor without AVX-512, at this one's speed: `tools/without_avx512.sh PROCESSOR COMMAND...`,
# PROCESSOR being AlderLake (AVX2 and VAES) or Haswell (AVX2 and AES-NI alone).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
make --no-print-directory --silent -C "$root" target/without_avx512.so
export FEDCIPHER_PROCESSOR=$1 LD_PRELOAD=$root/target/without_avx512.so
export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD
exec "${@:2}"
