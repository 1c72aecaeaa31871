"""The resource study: its processes, its figures, its reports, and what goes wrong with them."""

import contextlib
import csv
import errno
import functools
import json
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from fedcipher import cli, errors
from fedcipher.bench import Profile, client, profile_resources, results, server
from fedcipher.bench.advise import Federation, Prediction, advise, check
from fedcipher.bench.calibrate import TERMS, Point, calibrated, line, sizes
from fedcipher.bench.case import Case, CaseResult, Run
from fedcipher.bench.link import Connection, Link
from fedcipher.bench.sampler import Sample
from fedcipher.bench.statistics import FIGURES, averaged, summarise
from fedcipher.bench.study import run_study
from fedcipher.schemes import scheme_class
from hypothesis import given, settings
from hypothesis import strategies as st
from scheme_lists import adds, one_key, schemes_that
from wire_tools import SIGNATURE_LEN

SMALL = [
    Case("flashe", "flashe", 500, 3, sums=2),
    Case("bfv", "bfv", 500, 3),
    Case("plain", "plain", 50, 2),
    Case("oneshot", "oneshot", 50, 3),
]


@pytest.fixture(scope="module")
def study():
    return run_study("round", SMALL, runs=2, link=Link(), command="fedcipher bench round")


def started(*arguments, command="bench", **options):
    command = [sys.executable, "-m", "fedcipher.cli", command, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # A shell that runs the tests in the background has them, and all they start, ignore Ctrl-C.
    listen = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, preexec_fn=listen, **{**pipes, **options})


def gone(processes, within=15):
    _, alive = psutil.wait_procs(processes, timeout=within)
    return not alive


def until(condition, within=60):
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


def runs_in(folder):
    try:
        return sum(len(r["runs"]) for r in json.loads((folder / "results.json").read_text())["results"])
    except (OSError, ValueError):
        return 0


# --- measuring ---------------------------------------------------------------------------------


def test_every_case_is_measured_on_both_sides(study):
    assert [r.failure for r in study.results] == ["", "", "", ""]
    for result in study.results:
        assert len(result.runs) == 2
        for run in result.runs:
            client, server = run.client, run.server
            assert {"encrypt", "send", "wait", "decrypt"} <= set(client.phases)
            assert {"load key", "operate", "wait"} <= set(server.phases)
            updates = result.case.clients * result.case.sums
            # SEAL compresses what it serialises: of one case, ciphertexts differ in length by a few in ten thousand.
            least = updates * run.update_bytes * 0.99
            assert client.total("sent") >= least
            assert server.total("received") >= least
            assert server.total("sent") >= result.case.sums * run.aggregate_bytes
            assert client.peak_rss > 1e7 and server.peak_rss > 1e7
            assert sum(client.phases.values()) <= client.seconds * 1.01
            assert len(client.samples) >= 2 and client.samples[0].seconds < 0.05
        summary = summarise(result)
        assert set(summary) == {f.name for f in FIGURES}
        for figure in summary.values():
            assert figure.minimum <= figure.average <= figure.maximum <= figure.total + 1e-12
    flashe, bfv, _, _ = study.results
    # 14 bits a sum of three 12-bit values, packed, and the client's signature; nothing else grows with the values.
    assert 500 * 14 / 8 <= flashe.runs[0].update_bytes <= 500 * 14 / 8 + 200 + SIGNATURE_LEN
    assert bfv.runs[0].keygen_seconds > 0


def test_results_survive_a_file(study, tmp_path):
    assert results.write_results(study, tmp_path) == tmp_path
    again = results.load(tmp_path / "results.json")
    assert again.to_dict() == study.to_dict()
    for damage in ("", "{}", "[]", '{"results": 3}', '{"link": {"x": 1}, "results": []}'):
        (tmp_path / "results.json").write_text(damage)
        with pytest.raises(errors.ReportError):
            results.load(tmp_path / "results.json")


def test_both_files_of_a_round_are_whole(study, tmp_path):
    results.write(study, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "results.csv"}
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert len(rows) == len(SMALL) * len(FIGURES)
    for row in rows:
        assert float(row["min"]) <= float(row["avg"]) <= float(row["max"])


@pytest.mark.parametrize("name", ["phe-vs-fhe", "fednic", "report", "rounds"])
def test_a_measurement_of_research_is_said_to_be_there(name, capsys):
    assert cli.main(["bench", name]) == 2
    said = capsys.readouterr().err
    assert "pip install -e research" in said and "fedcipher-research bench" in said and said.count("\n") == 1


def test_runs_of_different_length_are_averaged_at_twenty_points():
    def profile(seconds, peak):
        return Profile(
            [Sample(0, 0, 100, 5, 7, 0, 0), Sample(seconds, 50, peak, 25, 8, 0, 9)], {"encrypt": seconds}, seconds
        )

    runs = [Run(profile(s, p), profile(s, p), 0.1, 10, 20, 30) for s, p in ((1.0, 300), (3.0, 500))]
    result = CaseResult(SMALL[0], runs)
    line = averaged(result, "client", "rss")
    assert len(line) == 20 and line[0] == 100 and line[-1] == 400
    np.testing.assert_allclose(np.diff(line), (400 - 100) / 19)
    summary = summarise(result)
    assert (summary["encrypt"].minimum, summary["encrypt"].maximum, summary["encrypt"].total) == (1.0, 3.0, 4.0)
    assert summary["bytes up"].average == 20 and summary["client disk written"].total == 18
    assert summarise(CaseResult(SMALL[0])) == {}


def test_a_function_of_ones_own():
    seen = []

    @profile_resources(on_profile=seen.append)
    def grow(megabytes):
        # Pages of its own: an allocator may give out ones that the process already holds.
        with mmap.mmap(-1, megabytes << 20) as held:
            for start in range(0, len(held), mmap.PAGESIZE):
                held[start] = 1
            time.sleep(0.3)
            return float(held[0])

    assert grow(200) == 1.0
    profile = grow.profile
    assert seen == [profile] and grow.__name__ == "grow"
    assert profile.peak_rss - profile.samples[0].rss > 150e6
    assert len(profile.samples) >= 4 and profile.phases["grow"] >= 0.3
    assert len(profile.interpolated("rss")) == 20
    # What was used from the start to the first look, not a rise from nothing.
    assert profile.interpolated("cpu_percent")[0] == profile.samples[1].cpu_percent

    @profile_resources
    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert fail.profile.seconds >= 0


# --- the link ----------------------------------------------------------------------------------


def test_links_are_written_as_numbers_with_units():
    link = Link.parse("40mbit", "80ms")
    assert (link.bandwidth, link.latency) == (40e6, 0.08)
    assert link.seconds(5_000_000) == pytest.approx(1.08)
    assert Link.parse() == Link() and Link.parse("1.5Gbit").bandwidth == 1.5e9
    for bandwidth, latency in (("40", ""), ("fast", ""), ("0mbit", ""), ("", "80"), ("", "-1ms"), ("1tbit", "")):
        with pytest.raises(errors.ParameterError):
            Link.parse(bandwidth, latency)


def test_a_shaped_link_is_no_faster_than_asked():
    left, right = (Connection(s) for s in loopback())
    left.shape(Link(bandwidth=4e6, latency=0.05))
    payload = os.urandom(100_000)
    began = time.monotonic()
    left.send("frame", payload, note=1)
    message = right.receive("frame")
    assert time.monotonic() - began >= 0.2 + 0.05
    assert message.payload == payload and message.facts == {"note": 1}
    assert left.counters()[0] == right.counters()[1] > 100_000
    left.close()
    with pytest.raises(errors.PeerLostError, match="closed"):
        right.receive("frame")


def loopback():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        return left, listener.accept()[0]


@settings(max_examples=60, deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda size, payload, body: b"FBN1" + size.to_bytes(4, "little") + payload.to_bytes(8, "little") + body,
            st.integers(0, 60),
            st.integers(0, 2**40),
            st.binary(max_size=120),
        ),
        st.builds(
            lambda body: b"FBN1" + len(body).to_bytes(4, "little") + bytes(8) + body,
            st.sampled_from([b"{}", b"[]", b"3", b"null", b'{"kind": 5}', b'{"kind": "frame"', b"\xff\xfe"]),
        ),
        st.builds(
            lambda nested: b"FBN1" + len(nested).to_bytes(4, "little") + bytes(8) + nested,
            st.sampled_from([b"[" * 100_000, b'{"kind":' * 100_000, b'{"kind": "frame", "x": ' + b"[" * 100_000]),
        ),
    )
)
def test_no_bytes_are_taken_for_a_message(data):
    left, right = loopback()
    with left, right:
        left.sendall(data)
        left.close()
        with pytest.raises(errors.PeerLostError):
            Connection(right).receive("frame")


@pytest.mark.parametrize("payload", [b"[" * 100_000, b"", b"3", b"{}", b'{"samples": 3}'])
def test_what_is_no_profile_is_not_taken_for_one(payload):
    left, right = loopback()
    with left, right:
        Connection(left).send("profile", payload)
        with pytest.raises(errors.PeerLostError, match="malformed profile"):
            client._profile(Connection(right))


# --- advice --------------------------------------------------------------------------------------


def test_a_bench_that_measures_nothing_leaves_the_report_that_is_there(tmp_path, capsys):
    few = ("--runs", "1", "--values", "100", "--clients", "2", "--schemes", "plain")
    asked = ["bench", "round", *few, "--out", str(tmp_path)]
    assert cli.main(asked) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert cli.main([*asked, "--bits", "99"]) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert "nothing was measured" in capsys.readouterr().err


def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(client, "_CONNECT_SECONDS", 0.5)
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(errors.PeerLostError, match="serving another client"):
        client.connect(f"127.0.0.1:{silent.getsockname()[1]}", Link())


def test_advice_for_a_threat():
    link = Link(1e6, 0.01)
    federation = Federation(1000, 3, link, 2, 2, "collusion")
    # Time enough on a busy machine too.
    best, *others = advise(federation, seconds=300)
    assert best.scheme == "oneshot" and all(p.excluded for p in others)
    assert best.members == 5 and best.answer > 0 and not best.extrapolated
    # The request and the answer are two more messages.
    assert best.transfer > link.seconds(best.update_bytes) + link.seconds(best.aggregate_bytes) + 2 * 0.01
    measured = check(federation, best)
    assert measured.answer > 0 and measured.seconds > 0
    (few,) = advise(Federation(1000, 2, link, 2, 2, "collusion"), ["oneshot"])
    assert "min_contributions" in few.why()
    quantum = Federation(1000, 2, Link(1e6, 0.01), 2, 2, "quantum")
    quick = [param.id for param in schemes_that(one_key, adds)]
    found = advise(quantum, quick, seconds=300)
    assert {p.scheme for p in found if p.excluded} == {name for name in quick if not scheme_class(name).info.hides}
    first = found[0]
    # Which of them is first is a matter of milliseconds here.
    assert not first.excluded and not first.extrapolated and "the link" in first.why()
    assert first.transfer == pytest.approx(0.02 + (first.update_bytes + first.aggregate_bytes) * 8 / 1e6)
    measured = check(quantum, first)
    assert measured.transfer == pytest.approx(first.transfer, rel=0.01) and measured.seconds > 0


def test_predictions_follow_lines_and_steps():
    def point(values, seconds):
        return Point(values, 1, {"encrypt": seconds}, {}, values, values)

    def at(points, values, per_ciphertext=1):
        return line(points, values, lambda p: p.wall["encrypt"], per_ciphertext)

    assert at([point(10, 1.0)], 100) == 10.0
    assert at([point(100, 2.0), point(1000, 11.0)], 10_000) == pytest.approx(101.0)
    # A ciphertext holds more than both: the next one costs as much again.
    assert at([point(64, 2.0), point(8000, 2.0)], 80_000) == pytest.approx(20.0)
    assert at([point(64, 2.0), point(8000, 3.0)], 8000) == 3.0
    # Whole ciphertexts: one value more than two of them costs what three do.
    assert at([point(8192, 2.0), point(16_384, 4.0)], 16_385, 8192) == pytest.approx(6.0)
    assert at([point(8192, 2.0)], 8193, 8192) == pytest.approx(4.0)
    assert Prediction("x", excluded="no").why() == "no"


@pytest.mark.parametrize("values", [1, 16, 100, 8192, 8193, 20_000, 10**8])
@pytest.mark.parametrize(("name", "per_ciphertext"), [("flashe", 1), ("bfv", 1), ("pasta-bfv", 8192)])
def test_no_calibration_measures_a_part_of_a_ciphertext(name, per_ciphertext, values):
    """64 values of `pasta-bfv` cost what 8,192 do: continued as a line they once foretold 143,000 s."""
    assert Case(name, name, 100, 4).made().values_per_ciphertext == per_ciphertext
    found = sizes(values, per_ciphertext)
    assert found == sorted(set(found)) and found[-1] == values
    assert all(size % per_ciphertext == 0 for size in found[:-1])
    # The first two already lie on the line.
    assert len(found) < 3 or found[1] == 2 * found[0]


def test_a_calibration_is_of_growing_updates_and_ends_at_the_size_asked_for():
    points = list(calibrated(Case("flashe", "flashe", 5000, 3), 120))
    assert [p.values for p in points] == sizes(5000, 1)
    assert points[0].clients == 1 and points[-1].clients == 3
    for point in points:
        assert set(point.wall) == set(point.busy) == set(TERMS) and point.wall["answer"] == 0
        assert min(point.wall[term] for term in ("encrypt", "operate", "decrypt")) > 0
    assert points[-1].update_bytes > points[0].update_bytes > 2 * points[0].values
    with pytest.raises(errors.BenchError, match="bits=99"):
        list(calibrated(Case("flashe", "flashe", 5000, 3, bits=99), 120))


def test_a_calibration_ends_with_its_time_and_says_what_it_has_seen():
    steps = []
    few, federation = Federation(1_000_000, 10, Link(), 2, 2), Federation(1_000_000, 40, Link(), 2, 2)
    found = advise(few, ["pasta-bfv"], lambda done, text: steps.append((done, text)), seconds=0.2)
    assert "8,192 values take longer" in found[0].why() and "--seconds" in found[0].why()
    assert steps[0] == (0, "pasta-bfv") and steps[-1] == (1, "done")
    assert "18 bits but the modulus has 16" in advise(federation, ["pasta-bfv"], seconds=0.2)[0].why()
    exact = advise(Federation(100, 3, Link(), 2, 2), ["flashe"])[0]
    assert not exact.extrapolated and exact.basis().endswith("100 values, 3 clients; as asked for")


def test_advice_takes_sensible_questions_only(capsys):
    for wrong, said in ((["--bits", "99"], "bits=99"), (["--seconds", "0"], "--seconds 0"), (["--clients", "0"], "at")):
        assert cli.main(["advise", "--values", "100", *wrong]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["advise", "--values", "100", "--check", "-1"])


# --- what goes wrong ---------------------------------------------------------------------------


def test_a_killed_server_leaves_what_was_measured(tmp_path):
    with started("serve", "--listen", "127.0.0.1:0") as server:
        address = server.stdout.readline().split()[-1]
        out = tmp_path / "out"
        asked = ("--schemes", "flashe,bfv", "--values", "3000", "--runs", "400", "--server", address)
        with started("round", *asked, "--out", str(out)) as bench:
            until(lambda: runs_in(out) >= 2)
            children = psutil.Process(bench.pid).children(recursive=True)
            server.kill()
            said, _ = bench.communicate(timeout=120)
    assert bench.returncode == 1, said
    assert "went away" in said or "closed the connection" in said or "fedcipher bench serve" in said, said
    kept = results.load(out / "results.json")
    assert len(kept.results[0].runs) >= 2 and all(r.failure for r in kept.results)
    assert (out / "results.csv").exists() and gone(children)


def test_a_refused_connection_says_what_to_start(tmp_path, capsys):
    arguments = ("--schemes", "flashe", "--values", "10", "--runs", "1", "--server", "127.0.0.1:1")
    assert cli.main(["bench", "round", *arguments, "--out", str(tmp_path)]) == 1
    assert "start `fedcipher bench serve --listen 127.0.0.1:1` there" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_first(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["bench", "round", "--runs", "1", "--out", str(tmp_path / "file" / "x")]) == 2
    said = capsys.readouterr().err
    assert "ReportError" in said and "--out" in said


def test_a_disk_that_fills_up_loses_no_run(tmp_path, capsys, monkeypatch):
    put, calls = results.put, []

    def full(path, content):
        calls.append(path)
        if path.parent == tmp_path and len(calls) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(path, content)

    monkeypatch.setattr(results, "put", full)
    arguments = ("--schemes", "flashe", "--values", "10", "--runs", "5", "--out", str(tmp_path))
    assert cli.main(["bench", "round", *arguments]) == 2
    said = capsys.readouterr().err.replace("\n", " ")
    kept = re.search(r"in (\S*results\.json)", said)
    assert kept, said
    assert len(results.load(Path(kept[1])).results[0].runs) == 3
    # What was on the disk before it filled up is whole.
    assert len(results.load(tmp_path / "results.json").results[0].runs) == 2


def test_ctrl_c_keeps_what_was_measured_and_ends_every_process(tmp_path):
    asked = ("--schemes", "flashe,bfv", "--values", "20000", "--runs", "400", "--out", str(tmp_path))
    with started("round", *asked) as bench:
        until(lambda: runs_in(tmp_path) >= 2)
        children = psutil.Process(bench.pid).children(recursive=True)
        assert len(children) == 2
        bench.send_signal(signal.SIGINT)
        said, _ = bench.communicate(timeout=240)
    assert bench.returncode == 130, said
    kept = results.load(tmp_path / "results.json")
    assert kept.interrupted and len(kept.results[0].runs) >= 2
    assert "interrupted" in said and (tmp_path / "results.csv").exists() and gone(children)


def test_nothing_outlives_a_killed_study(tmp_path):
    with started("round", "--schemes", "flashe", "--runs", "400", "--out", str(tmp_path)) as bench:
        until(lambda: runs_in(tmp_path) >= 1)
        children = psutil.Process(bench.pid).children(recursive=True)
        bench.kill()
    assert children and gone(children)
    assert results.load(tmp_path / "results.json").results[0].runs


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("command", ["bench", "advise"])
def test_measuring_leaves_no_folder_however_it_ends(tmp_path, command, how):
    scratch, out = tmp_path / "tmp", tmp_path / "out"
    scratch.mkdir()
    asked = ["round", "--schemes", "flashe", "--runs", "400", "--out", str(out)]
    if command == "advise":
        asked = ["--values", "1000000", "--clients", "50", "--schemes", "bfv", "--seconds", "600"]
    with started(*asked, command=command, env={**os.environ, "TMPDIR": str(scratch)}) as process:
        # `advise` has begun once there is a file of the process that it measures.
        until(lambda: list(scratch.glob("*")) and (runs_in(out) or list(scratch.glob("fedcipher-advise-*/*"))))
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(how)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == (-how if how == signal.SIGKILL else 128 + how), said
    assert gone(children)
    until(lambda: not list(scratch.iterdir()))


def test_a_server_outlives_bad_clients():
    with started("serve", "--listen", "127.0.0.1:0") as server:
        try:
            host, port = server.stdout.readline().split()[-1].rsplit(":", 1)
            for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"", os.urandom(400)):
                with socket.create_connection((host, int(port))) as raw, contextlib.suppress(ConnectionError):
                    raw.sendall(garbage)
            for setup in ({"spec": {"scheme": "none"}}, {"spec": 3}, {}):
                connection = Connection(socket.create_connection((host, int(port))))
                connection.send("hello", bandwidth=0, latency=0)
                connection.receive("welcome")
                connection.send("setup", b"no key", **setup)
                with pytest.raises(errors.PeerLostError, match="reports"):
                    connection.receive("ready")
                connection.close()
            result = run_study("round", SMALL[:1], runs=1, link=Link(), server=f"{host}:{port}").results[0]
            assert not result.failure and len(result.runs) == 1
        finally:
            server.kill()


def test_a_wrong_mean_is_an_error(monkeypatch):
    """The client checks what it decrypts against what it sent."""
    case = SMALL[1]
    left, right = loopback()
    thread = threading.Thread(target=_serve, args=(right,))
    thread.start()
    connection = Connection(left)
    connection.send("hello", bandwidth=0, latency=0)
    connection.receive("welcome")
    monkeypatch.setattr(client.np, "mean", lambda *_, **__: np.full(case.values, 0.5))
    with pytest.raises(errors.BenchError, match="is off by"):
        list(client.measure(case, connection, 1))
    connection.close()
    thread.join(10)


def _serve(sock):
    with contextlib.suppress(errors.PeerLostError):
        connection = Connection(sock)
        server._session(connection, connection.receive("hello"))
