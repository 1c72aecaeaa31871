"""Wheels say nothing of the machine that built them, and a difference between two wheels is found and named."""

import base64
import hashlib
import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from places import ROOT

LIST, RECORD = "x-1.dist-info/sboms/x.cyclonedx.json", "x-1.dist-info/RECORD"
DATE = (2026, 1, 2, 3, 4, 6)


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    return importlib.import_module


def row(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(data)}\n"


def wheel_of(path, files, date=DATE):
    """As maturin writes one: digests of all files but RECORD in RECORD, and one date."""
    record = "".join(row(name, data) for name, data in files.items()) + f"{RECORD},,\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**files, RECORD: record.encode()}.items():
            info = zipfile.ZipInfo(name, date)
            info.external_attr, info.compress_type = 0o100755 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return path


def listed(folder):
    return f'{{"bom-ref": "path+{folder.as_uri()}/crates/a#1", "other": "registry+https://b#2"}}'.encode()


def test_wheels_of_two_folders_become_equal(tmp_path, tool):
    tools, made = tool("finish_wheels"), []
    for folder in (tmp_path / "one", tmp_path / "another" / "folder"):
        wheel = wheel_of(tmp_path / f"{folder.name}.whl", {"x/__init__.py": b"1", LIST: listed(folder)})
        tools.finish(wheel, folder, {})
        made.append(wheel.read_bytes())
    assert made[0] == made[1]


def test_a_wheel_keeps_everything_but_the_folder(tmp_path, tool):
    wheel = wheel_of(tmp_path / "a.whl", {"x/__init__.py": b"1", LIST: listed(tmp_path)})
    before = {info.filename: (info.date_time, info.external_attr) for info in zipfile.ZipFile(wheel).infolist()}
    tool("finish_wheels").finish(wheel, tmp_path, {})
    with zipfile.ZipFile(wheel) as archive:
        assert {i.filename: (i.date_time, i.external_attr) for i in archive.infolist()} == before
        text = archive.read(LIST)
        assert text == b'{"bom-ref": "path+file:///fedcipher/crates/a#1", "other": "registry+https://b#2"}'
        # An installer compares each file with RECORD.
        assert archive.read(RECORD).decode() == row("x/__init__.py", b"1") + row(LIST, text) + f"{RECORD},,\n"
    assert sorted(tmp_path.iterdir()) == [wheel]


def test_a_wheel_that_names_no_folder_is_not_touched(tmp_path, tool):
    wheel = wheel_of(tmp_path / "a.whl", {LIST: listed(tmp_path)})
    before = wheel.read_bytes()
    tool("finish_wheels").finish(wheel, tmp_path / "elsewhere", {})
    assert wheel.read_bytes() == before


LINUX = "x-1-cp310-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64.whl"


@pytest.fixture
def target(tmp_path):
    """Cargo's target folder with the engine of two processors."""
    for processor in ("x86_64", "aarch64"):
        folder = tmp_path / "target" / f"{processor}-unknown-linux-musl" / "release"
        folder.mkdir(parents=True)
        (folder / "fedcipher-engine").write_bytes(f"for {processor}".encode())
    return tmp_path / "target"


def test_a_linux_wheel_gets_the_programs_of_its_processor_once(tmp_path, tool, target):
    tools = tool("finish_wheels")
    wheel = wheel_of(tmp_path / LINUX, {"x/__init__.py": b"1"})
    programs = tools.programs_for(wheel, target)
    tools.finish(wheel, tmp_path, programs)
    with zipfile.ZipFile(wheel) as archive:
        engine, authority = archive.infolist()[1:3]
        assert archive.namelist()[-1] == RECORD
        assert (engine.filename, authority.filename) == tuple(f"x-1.data/scripts/{name}" for name in programs)
        assert archive.read(engine) == b"for aarch64"
        assert engine.external_attr >> 16 == authority.external_attr >> 16 == 0o100755
        assert engine.date_time == authority.date_time == DATE
        rows = "".join(row(f"x-1.data/scripts/{name}", data) for name, data in programs.items())
        assert archive.read(RECORD).decode() == rows + row("x/__init__.py", b"1") + f"{RECORD},,\n"
    before = wheel.read_bytes()
    tools.finish(wheel, tmp_path, programs)
    assert wheel.read_bytes() == before


@pytest.mark.parametrize("platform", ["win_amd64", "macosx_11_0_arm64"])
def test_a_wheel_of_another_system_gets_no_programs(tool, target, platform):
    assert tool("finish_wheels").programs_for(Path(f"x-1-cp310-abi3-{platform}.whl"), target) == {}


@pytest.mark.skipif(sys.platform == "win32", reason="a script of sh")
def test_the_authoritys_script_runs_the_engine_beside_it(tmp_path, tool):
    script = tool("finish_wheels").AUTHORITY_SCRIPT
    programs = {"fedcipher-engine": b'#!/bin/sh\nprintf "<%s>" "$@"', "fedcipher-authority": script}
    for name, text in programs.items():
        (tmp_path / name).write_bytes(text)
        (tmp_path / name).chmod(0o755)
    command = [tmp_path / "fedcipher-authority", "enrol", "a b"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == "<authority><enrol><a b>"


def test_a_linux_wheel_without_the_programs_is_refused(tmp_path, tool):
    parts = ("x.dist-info/licenses/LICENSE-MIT", "x.dist-info/licenses/LICENSE-APACHE", "x/_native.so", "x/py.typed")
    wheel = wheel_of(tmp_path / LINUX, {**dict.fromkeys(parts, b""), LIST: b""})
    with pytest.raises(AssertionError, match="has no scripts/fedcipher-engine"):
        tool("check_wheels").complete(wheel)


def test_a_wheel_with_a_folder_of_its_machine_is_refused(tmp_path, tool):
    parts = ("x.dist-info/licenses/LICENSE-MIT", "x.dist-info/licenses/LICENSE-APACHE", "x/_native.so", "x/py.typed")
    files = dict.fromkeys(parts, b"")
    check = tool("check_wheels").complete
    with pytest.raises(AssertionError, match="names a folder of the machine"):
        check(wheel_of(tmp_path / "a.whl", {**files, LIST: listed(tmp_path)}))
    check(wheel_of(tmp_path / "a.whl", {**files, LIST: listed(Path("/fedcipher"))}))


@pytest.mark.parametrize(
    ("other", "date", "said"),
    [
        ({"a": b"same", "b": b"0123456789x"}, DATE, ["b: 11 and 11 bytes, from byte 10 on: b'0123456789-' and "]),
        ({"a": b"same", "b": b"0123456789-+"}, DATE, ["b: 11 and 12 bytes, from byte 11 on"]),
        ({"a": b"same"}, DATE, ["b: only in the first"]),
        ({"a": b"same", "b": b"0123456789-"}, (2026, 1, 2, 3, 4, 8), ["a: dates or modes", "b: dates or modes"]),
        ({"b": b"0123456789-", "a": b"same"}, DATE, ["the order of the files"]),
    ],
)
def test_where_two_wheels_differ_is_said(tmp_path, tool, capsys, other, date, said):
    first = wheel_of(tmp_path / "1.whl", {"a": b"same", "b": b"0123456789-"})
    second = wheel_of(tmp_path / "2.whl", other, date)
    assert tool("reproducible").report(first, second) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(RECORD)]
    assert lines[-1] == "the wheels differ"
    assert len(lines) == len(said) + 1
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=False))


def test_equal_wheels_are_equal(tmp_path, tool, capsys):
    first, second = (wheel_of(tmp_path / f"{k}.whl", {"a": b"same"}) for k in range(2))
    assert tool("reproducible").report(first, second) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "the wheels are equal"


@pytest.mark.skipif(sys.platform == "win32", reason="a script of bash")
def test_builds_name_no_folder_of_the_machine_and_have_the_commits_date(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    environment |= {"CARGO_HOME": str(tmp_path), "RUSTFLAGS": "-D warnings"}
    said = subprocess.run(
        [ROOT / "tools" / "reproducibly.sh", "env"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    given = dict(line.split("=", maxsplit=1) for line in said.splitlines() if "=" in line)
    assert given["RUSTFLAGS"].startswith("-D warnings ")
    for flags, option in (("RUSTFLAGS", "--remap-path-prefix"), ("CFLAGS", "-ffile-prefix-map")):
        assert f"{option}={ROOT}=/fedcipher" in given[flags].split()
        assert f"{option}={tmp_path}=/cargo" in given[flags].split()
    time = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    assert given["SOURCE_DATE_EPOCH"] == (time or "315532800")
