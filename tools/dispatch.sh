#!/usr/bin/env bash
# Known answers, and the unit tests of what is dispatched, on processors that lack what this one has: qemu's user-mode
# emulation says what there is, and the code picks its path by that. AVX-512 is not emulated: it is tested where it is.
# Where CPUID traps, all unit tests of the core run without it too, with VAES and without (tools/without_avx512.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
emulator=$(command -v qemu-x86_64-static) || { echo "qemu-x86_64-static is absent; install qemu-user-static" >&2; exit 1; }
features=("$@")
mapfile -t programs < <(cargo test --quiet --workspace "${features[@]}" --no-run --message-format=json |
	python3 -c '
import json, sys
for line in sys.stdin:
    found = json.loads(line)
    if found.get("executable") and found["target"]["name"] in ("known_answers", "fedcipher_core"):
        print(found["executable"])')
if [ ${#programs[@]} -ne 2 ]; then
	echo "two test programs were to be built, and there are ${#programs[@]}: ${programs[*]}" >&2
	exit 1
fi
for processor in Nehalem Westmere Haswell; do
	for program in "${programs[@]}"; do
		only=()
		case $program in *fedcipher_core*) only=(admission:: bits:: codec:: flashe:: lanes:: mac:: packing:: prf:: rlwe::) ;; esac
		echo "$processor: $(basename "$program")"
		FEDCIPHER_PROCESSOR=$processor "$emulator" -cpu "$processor" "$program" --quiet "${only[@]}" 2> >(grep -v "TCG doesn't support" >&2)
	done
done
if ! grep -q cpuid_fault /proc/cpuinfo; then
	echo "CPUID does not trap on this machine: not tested without AVX-512 at full speed" >&2
	exit
fi
for processor in Haswell AlderLake; do
	for program in "${programs[@]}"; do
		echo "$processor, not emulated: $(basename "$program")"
		tools/without_avx512.sh "$processor" "$program" --quiet
	done
done
