"""What `fedcipher bench` is held to by control groups, with the kernel's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fedcipher import cli
from fedcipher.bench.case import Case
from fedcipher.bench.groups import Limits, limited_group
from fedcipher.bench.link import Link
from fedcipher.bench.study import run_study
from fedcipher.errors import BenchError, ParameterError

HALF = Limits.parse(0.5, "200MB")


def ours():
    return list(Path("/sys/fs/cgroup").glob(f"**/fedcipher-{os.getpid()}-*"))


@pytest.fixture(scope="module")
def groups():
    try:
        with limited_group(HALF, "probe"):
            return
    except BenchError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("groups")
def test_a_process_and_its_children_have_no_more_than_they_are_held_to():
    spin = (
        "import time, os\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    )
    with limited_group(HALF, "spin") as group:
        done = subprocess.run([*group.before, sys.executable, "-c", spin], capture_output=True, text=True, check=True)
    # A quota is a bound from above, however busy the machine is.
    assert float(done.stdout) < 1.2
    child = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
    large = "len(b'x' * (1 << 29))"
    with limited_group(HALF, "child") as group:
        done = subprocess.run([*group.before, sys.executable, "-c", child, large], capture_output=True, check=False)
    assert done.returncode
    assert not ours()


@pytest.mark.usefixtures("groups")
def test_a_group_tells_what_ran_in_it_and_has_this_process_only_for_a_while():
    spin = "import time\nwhile time.process_time() < 0.4: pass"
    groups_of_this = Path("/proc/self/cgroup")
    before = groups_of_this.read_text()
    with limited_group(Limits(cpus=0.5), "count") as group:
        with group.around():
            assert groups_of_this.read_text() != before
            subprocess.run([sys.executable, "-c", spin], check=True)
        assert groups_of_this.read_text() == before
        spent = group.seconds()
        assert spent >= 0.4
        # Of another group.
        subprocess.run([sys.executable, "-c", spin], check=True)
        assert group.seconds() == spent
    assert not ours()


def test_a_group_of_no_limits_has_no_processor_time_to_tell():
    with limited_group(Limits(), "none") as group, pytest.raises(BenchError, match="does not tell"):
        group.seconds()


@pytest.mark.usefixtures("groups")
def test_a_study_says_what_its_processes_were_held_to_and_which_one_did_not_fit():
    case = Case("flashe", "flashe", 500, 2)
    study = run_study("round", [case], runs=1, link=Link(), limits=Limits.parse(1.5, "2GiB"))
    assert study.results[0].runs and not study.results[0].failure
    assert study.machine["each process"] == "limited to 1.5 processors and 2.15 GB"
    study = run_study("round", [case], runs=1, link=Link(), limits=Limits.parse(0, "16MiB"))
    assert study.results[0].failure and not study.results[0].runs
    assert not ours()


def test_where_no_group_can_be_made_the_study_says_so_before_it_measures(tmp_path, monkeypatch):
    monkeypatch.setattr("fedcipher.bench.groups._GROUPS", tmp_path)
    monkeypatch.setattr("fedcipher.bench.groups._own", lambda: {"": "/a/b"})
    with pytest.raises(BenchError, match="leave out --cpus and --memory"):
        run_study("round", [Case("flashe", "flashe", 500, 2)], runs=1, link=Link(), limits=HALF)


def test_version_2_makes_one_group_beside_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("fedcipher.bench.groups._GROUPS", tmp_path)
    monkeypatch.setattr("fedcipher.bench.groups._own", lambda: {"": "/a/b"})
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "memory.swap.max").touch()
    with limited_group(HALF, "probe") as group:
        (folder,) = (tmp_path / "a").glob("fedcipher-*")
        assert group.before[-2:] == [str(folder), "--"]
        written = {file.name: file.read_text() for file in folder.iterdir()}
    assert written == {"cpu.max": "50000 100000", "memory.max": "200000000", "memory.swap.max": "0"}


def test_version_2_takes_this_process_and_gives_it_back(tmp_path, monkeypatch):
    monkeypatch.setattr("fedcipher.bench.groups._GROUPS", tmp_path)
    monkeypatch.setattr("fedcipher.bench.groups._own", lambda: {"": "/a/b"})
    own = tmp_path / "a" / "b"
    own.mkdir(parents=True)
    with limited_group(Limits(cpus=2), "probe") as group:
        (folder,) = (tmp_path / "a").glob("fedcipher-*")
        (folder / "cpu.stat").write_text("nr_periods 3\nusage_usec 1500000\n")
        assert group.seconds() == 1.5
        with group.around():
            assert (folder / "cgroup.procs").read_text() == str(os.getpid())
            assert not (own / "cgroup.procs").exists()
        assert (own / "cgroup.procs").read_text() == str(os.getpid())
        group.take(12345)
        assert (folder / "cgroup.procs").read_text() == "12345"


def test_a_machine_that_does_not_count_processor_time_still_limits_it(tmp_path, monkeypatch):
    monkeypatch.setattr("fedcipher.bench.groups._GROUPS", tmp_path)
    monkeypatch.setattr("fedcipher.bench.groups._own", lambda: {"cpu": "/", "memory": "/"})
    (tmp_path / "cpu").mkdir()
    with limited_group(Limits(cpus=2), "probe") as group:
        assert [Path(folder).parent.name for folder in group.before[4:-1]] == ["cpu"]
        with pytest.raises(BenchError, match="does not tell"):
            group.seconds()


@pytest.mark.parametrize(
    ("cpus", "memory"), [(-1, ""), (float("nan"), ""), (0.001, ""), (1e9, ""), (0, "2"), (0, "1MB"), (0, "-2GiB")]
)
def test_limits_that_make_no_sense_are_refused(cpus, memory):
    with pytest.raises(ParameterError, match=r"--cpus|--memory"):
        Limits.parse(cpus, memory)


def test_limits_that_would_hold_nothing_are_refused(capsys):
    assert cli.main(["bench", "round", "--server", "h:1", "--memory", "2GiB"]) == 2
    assert "limit the two processes" in capsys.readouterr().err
