"""A run that is watched: its page and its metrics over HTTP, its figures in other people's logs."""

import contextlib
import html
import json
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import fedcipher
import numpy as np
import pytest
from fedcipher import cli, errors, keys
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.federation.records import ClientRecord, RoundRecord
from fedcipher.federation.server import journal
from fedcipher.watch import JsonLines, MLflow, TensorBoard, WandB, figures, follow
from fedcipher.watch.app import _server, address, dashboard, listener
from fedcipher.watch.metrics import Metrics
from fedcipher.watch.run import WatchedRun
from flower_harness import LocalGrid, initial, make_app, record
from flwr.app import Error, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

CLIENTS, ROUNDS = 4, 3
EVIL = "</li><script>alert(1)</script>"
SEEN = {"No round has ended", "The server is running", "flashe on digits"}
"""On a training's own page."""
END = f"all 3 rounds have an aggregate; client 2 is missing from 1 of 3 sums (last in round 2: StrategyError: {EVIL})"


class Watched:
    """A run of three rounds with one client that fails in the second."""

    def __init__(self, folder, rng, on_round=None, evaluate_fn=None, **options):
        scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=fedcipher.Codec(bits=16, clip=2.0))
        self.keys = keys.save(scheme.keygen(CLIENTS), scheme, folder / "keys")
        goals = [[rng.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(CLIENTS)]
        self.folder = folder / "run"
        grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, self.keys, self.tamper)
        sampled = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
        answers = {"train_answers": ["loss"], "evaluate_answers": ["distance"]}
        self.strategy = SecureStrategy(
            FedAvg(**sampled), self.keys, out=self.folder, on_round=on_round, **answers, **options
        )
        self.result = self.strategy.start(grid, record(initial()), num_rounds=ROUNDS, evaluate_fn=evaluate_fn)

    def tamper(self, message, reply, client):
        if message.metadata.message_type == "train" and client == 2:
            if message.content["config"]["server-round"] == 2:
                return Message(Error(code=7, reason=EVIL), reply_to=message)
            # It says what no client should.
            phases = reply.content["fedcipher.metrics"]
            phases["my_own_phase_seconds"], phases["encrypt_seconds"] = 1.0, -5.0
            phases["decrypt_seconds"], phases["upload_bytes"] = float("nan"), float("inf")
            phases["encode_seconds"] = 1e300
        return reply


def get(address, headers=None):
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers or {}), timeout=20) as answer:
        return answer.status, answer.headers, answer.read().decode()


class Dashboard:
    """`fedcipher dashboard` as its user starts it."""

    def __init__(self, folder, *more):
        command = [sys.executable, "-m", "fedcipher.cli", "dashboard", str(folder), "--listen", "127.0.0.1:0", *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = re.fullmatch(r"dashboard: (http://127\.0\.0\.1:\d+/)\n", self.process.stdout.readline())[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(20) == 143
        self.process.stdout.close()


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCIPHER_STATE_DIR", str(folder / "state"))
        return Watched(folder, np.random.default_rng(7))


@pytest.fixture(scope="module")
def key(watched):
    return str(watched.keys / "client-1.key")


@pytest.fixture(scope="module")
def opened(watched, key):
    """Its rounds for the holder of a key."""
    return Metrics(watched.folder, key).past().rounds


def test_a_record_has_the_metrics_of_its_round_for_a_key_only(watched, opened):
    first, second, _ = opened
    assert set(first.metrics) == {"train", "evaluate"} and first.metrics["train"]["loss"] == 1.5
    assert first.metrics["evaluate"]["distance"] > 0 and second.metrics["train"]["loss"] == pytest.approx(4 / 3)
    assert all(made.wall_seconds > 0 for made in watched.strategy.rounds)
    assert not any(made.metrics or made.counted for made in watched.strategy.rounds)
    assert journal.read_journal(watched.folder).rounds == watched.strategy.rounds


def test_phases_are_those_that_there_are(watched):
    """A client writes them: a name of its own, a number below 0 or beyond all bounds are in no record."""
    hostile = next(client for client in watched.strategy.rounds[0].clients if client.client == 2)
    assert hostile.left_out is None and set(hostile.phases) >= {"setup_bytes", "download_bytes", "offline_seconds"}
    assert not set(hostile.phases) & {
        *("my_own_phase_seconds", "encrypt_seconds", "decrypt_seconds", "upload_bytes", "encode_seconds")
    }


def test_those_who_watch_are_told_after_evaluate_fn(tmp_path, rng):
    told = []
    evaluated = []

    def evaluate(number, _):
        evaluated.append(number)
        return MetricRecord({"accuracy": 0.5 + number / 10})

    def first(made):
        assert evaluated[-1] == made.round
        told.append((made.round, made.metrics["server"]["accuracy"]))

    run = Watched(tmp_path, rng, [first, lambda made: told.append(made.round)], evaluate, opener="client-3.key")
    assert told == [(1, 0.6), 1, (2, 0.7), 2, (3, 0.8), 3]
    past = journal.read_journal(run.folder)
    assert [made.metrics["server"]["accuracy"] for made in past.rounds] == [0.6, 0.7, 0.8]


def test_the_page_shows_rounds_clients_and_reasons(watched):
    with Dashboard(watched.folder) as shown:
        _, headers, page = get(shown.address)
        assert "script-src 'self'" in headers["Content-Security-Policy"] and headers["Cache-Control"] == "no-store"
        assert page.count("<svg") == 4 and "flashe on run" in page and "withstands: " in page
        assert "The server is not running. 3 rounds have ended." in page and "Metrics are encrypted: --key" in page
        assert "round 2, client 2: StrategyError: &lt;/li&gt;&lt;script&gt;alert(1)" in page and EVIL not in page
        # Nothing else is loaded.
        assert re.findall(r"""(?:src|href)\s*=\s*["'](?!\#)[^"']*|url\((?!\#)[^)]*""", page) == ['src="live.js']
        state = re.search(r'data-state="([0-9a-f]+)"', page)[1]
        assert get(f"{shown.address}content?seen={state}")[0] == 204
        status, headers, part = get(f"{shown.address}content?seen=")
        assert status == 200 and headers["X-State"] == state and "<h1>" in part and "<html" not in part
        assert "fetch(" in get(f"{shown.address}live.js")[2]
        # No page elsewhere reads it by giving this address a name of its own.
        with pytest.raises(urllib.error.HTTPError, match="400"):
            get(shown.address, {"Host": "evil.example"})


def test_the_page_shows_the_metrics_to_the_holder_of_a_key(watched, key, opened):
    with Dashboard(watched.folder, "--key", key) as shown:
        page = get(shown.address)[2]
        assert "Metrics are encrypted" not in page and "distance" in page
        told = json.loads(get(f"{shown.address}rounds.json")[2])["rounds"]
        assert [made["metrics"]["distance"] for made in told] == [r.metrics["evaluate"]["distance"] for r in opened]
        assert [made["metrics"]["training loss"] for made in told] == [1.5, pytest.approx(4 / 3), 1.5]
        assert len({made["model"] for made in told}) == 3 and told[0]["seconds"]["train"] >= 0
        assert told[0]["clipped"] == 0


def test_what_is_not_known_without_a_key_stays_empty(watched):
    with TestClient(dashboard(WatchedRun(watched.folder), ["testserver"])) as browser:
        told = browser.get("/rounds.json").json()["rounds"][0]
    assert told["metrics"] == {} and told["clipped"] is None and "train" not in told["seconds"]
    assert told["seconds"]["encrypt"] > 0 and told["elements"] == 607


def test_the_status_has_the_metrics_for_a_key(watched, key, capsys):
    assert cli.main(["status", str(watched.folder)]) == 0
    said = capsys.readouterr().out
    assert "round 1 (key epoch 1): 4 updates, 0 left out, 0 late\n" in said
    assert said.endswith(f"Metrics are encrypted: --key FILE (a client's key file), or --engine, shows them.\n{END}\n")
    assert cli.main(["status", str(watched.folder), "--key", key]) == 0
    said = capsys.readouterr().out
    assert "4 updates, 0 left out, 0 late; distance 0." in said and "training loss 1.5" in said
    assert "encrypted" not in said


def test_numbers_for_programs(watched, key):
    with Dashboard(watched.folder, "--key", key) as shown:
        told = json.loads(get(f"{shown.address}rounds.json")[2])
        assert [made["round"] for made in told["rounds"]] == [1, 2, 3] and told["scheme"] == "flashe"
        assert told["outcome"] == watched.result.outcome.text() == END
        assert html.escape(END) in get(shown.address)[2]
        assert told["rounds"][1]["clients"] == 3 and told["running"] is False
        families = {f.name: f for f in text_string_to_metric_families(get(f"{shown.address}metrics")[2])}
        samples = {(s.name, *sorted(s.labels.values())): s.value for f in families.values() for s in f.samples}
        assert samples["fedcipher_rounds_total", "aggregate"] == 3 and samples["fedcipher_round",] == 3
        assert samples["fedcipher_updates_total", "accepted"] == 11
        assert samples["fedcipher_updates_total", "left_out"] == 1 and samples["fedcipher_server_running",] == 0
        sent = sum(c.phases.get("upload_bytes", 0) for made in watched.strategy.rounds for c in made.clients)
        assert samples["fedcipher_bytes_total", "upload"] == sent > 1000
        assert (
            samples["fedcipher_metric", "loss", "train"] == 1.5
            and samples["fedcipher_phase_seconds_total", "train"] >= 0
        )
        assert samples["fedcipher_phase_seconds_total", "encrypt"] > 0


def test_a_run_that_grows_is_seen_to_grow(watched, tmp_path, capsys):
    grows = tmp_path / "run"
    grows.mkdir()
    for path in watched.folder.iterdir():
        (grows / path.name).write_bytes(path.read_bytes())
    with Dashboard(grows) as shown:
        state = get(f"{shown.address}content?seen=")[1]["X-State"]
        running = journal.Journal(grows)
        running.begin(RoundRecord(4, number=watched.strategy.rounds[-1].number + 1))
        _, headers, page = get(f"{shown.address}content?seen={state}")
        assert headers["X-State"] != state and "The server is running; round 4 is active. 3 rounds" in page
        running.close()
        page = get(f"{shown.address}content?seen={headers['X-State']}")[2]
        assert "not running. The server ended in the middle of a round. 3 rounds have ended." in page
        # As the command says it, and for programs.
        outcome = "1 of 4 rounds have no aggregate: [4]. The last, round 4: the server ended during this round"
        assert outcome in page and json.loads(get(f"{shown.address}rounds.json")[2])["outcome"].startswith(outcome)
        assert cli.main(["status", str(grows)]) == 0 and outcome in capsys.readouterr().out.splitlines()[-1]
        # The journal goes: the page says so, and goes on.
        with sqlite3.connect(grows / "journal.db") as base:
            base.execute("PRAGMA user_version=9")
        assert "has format 9" in get(shown.address)[2]
        with pytest.raises(urllib.error.HTTPError, match="503"):
            get(f"{shown.address}metrics")


def test_before_its_first_round_has_ended_a_page_has_no_empty_axes(watched, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_bytes((watched.folder / "run.json").read_bytes())
    begun = journal.Journal(run)
    with TestClient(dashboard(WatchedRun(run), ["testserver"])) as browser:
        assert "The run waits for the server to begin round 1" in browser.get("/").text
        begun.begin(RoundRecord(1, number=1, planned=5))
        page = browser.get("/").text
        assert "The run waits for round 1" in page and "Waiting for <span data-since=" in page
        assert "withstands: " in page
        assert "<svg" not in page and "<table" not in page and "<progress" not in page
        begun.close()
        assert "The server is not running. Start it again" in browser.get("/").text


def test_a_journal_says_how_many_rounds_are_asked_for(watched):
    past = journal.read_journal(watched.folder)
    assert [made.planned for made in past.rounds] == [ROUNDS] * ROUNDS
    with TestClient(dashboard(WatchedRun(watched.folder), ["testserver"])) as browser:
        assert f"{ROUNDS} of {ROUNDS} rounds" in browser.get("/").text
    said = json.loads(json.dumps(asdict(past.rounds[0])))
    for planned in (-1, 1 << 60, 1.5, True):
        with pytest.raises(ValueError, match="round's record"):
            RoundRecord.parse({**said, "planned": planned})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.7e308, 1e-320])
@pytest.mark.parametrize("name", ["$\\bad{$", "accuracy", "<b>&"])
def test_odd_metrics_are_shown(watched, tmp_path, name, value):
    """They come from clients, or from a training that diverged; what is seen of all other rounds stays."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_bytes((watched.folder / "run.json").read_bytes())
    odd = journal.Journal(run)
    for number, shown in ((1, value), (2, 1.7e308)):
        made = RoundRecord(number, number=number, metrics={"evaluate": {name: shown}})
        odd.begin(made)
        odd.end(made, journal.Ended(0))
    odd.close()
    with TestClient(dashboard(WatchedRun(run), ["testserver"])) as browser:
        page = browser.get("/")
        assert page.status_code == 200 and "2 rounds have ended" in page.text and "<b>" not in page.text
        told = browser.get("/rounds.json").json()["rounds"][0]["metrics"][name]
        assert told == (value if np.isfinite(value) else None)
        families = list(text_string_to_metric_families(browser.get("/metrics").text))
        assert [s.labels["name"] for f in families for s in f.samples if s.name == "fedcipher_metric"] == [name]


@pytest.mark.parametrize("listen", ["[::1]:0", "127.0.0.1:0"])
def test_the_address_that_is_shown_is_one_that_answers(watched, listen):
    names = ["Dash.Example", "192.0.2.7"]
    try:
        made = listener(listen)
    except OSError as error:
        pytest.skip(f"{listen}: {error}")
    with made as at:
        server = _server(WatchedRun(watched.folder), at, names)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [at]})
        thread.start()
        try:
            assert get(address(at))[0] == 200
            port = at.getsockname()[1]
            for host in ("dash.example", "DASH.example:80", "192.0.2.7:1234", f"localhost:{port}", "[::1]"):
                assert get(address(at), {"Host": host})[0] == 200, host
            for host in ("example", "dash.example.evil", "dash.example:x", "[::2]", "::1", "[::1", "a:b:c", ":80"):
                with pytest.raises(urllib.error.HTTPError, match="400"):
                    get(address(at), {"Host": host})
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.parametrize(
    ("listen", "whose"),
    [("127.0.0.1:0", "every user of this machine"), ("0.0.0.0:0", "everyone who can connect to 0.0.0.0")],
)
def test_the_command_says_who_can_read_a_page_without_a_login(watched, listen, whose):
    command = [sys.executable, "-m", "fedcipher.cli", "dashboard", str(watched.folder), "--listen", listen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("dashboard: ")
        assert whose in process.stderr.readline()
        process.terminate()


@pytest.mark.parametrize("name", ["a*b", "https://dash.example", "dash.example:8080", "", "a b"])
def test_a_name_that_no_browser_can_call_by_is_refused(watched, name, capsys):
    assert cli.main(["dashboard", str(watched.folder), "--listen", "127.0.0.1:0", "--host", name]) == 2
    assert "is not the name of a machine" in capsys.readouterr().err


HALF = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: 127",
    "half a body": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nabc",
    "half a second request": b"GET /live.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP",
}


@pytest.mark.parametrize("sent", HALF.values(), ids=HALF)
def test_eighty_half_requests_shut_nobody_out(watched, sent):
    resource = pytest.importorskip("resource")
    with Dashboard(watched.folder) as shown, contextlib.ExitStack() as stack:
        # Fewer descriptors than there are half requests.
        resource.prlimit(shown.process.pid, resource.RLIMIT_NOFILE, (80, 80))
        port = int(shown.address.rstrip("/").rpartition(":")[2])
        for _ in range(80):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)).sendall(sent)
        for path in ("", "rounds.json", "metrics"):
            with urllib.request.urlopen(shown.address + path, timeout=60) as answer:
                assert answer.status == 200


def test_a_page_is_drawn_once_for_all_who_ask_at_the_same_time(watched, monkeypatch):
    drawn = []
    monkeypatch.setattr("fedcipher.watch.app._content", lambda run: [drawn.append(run) or f"picture {len(drawn)}"])
    monkeypatch.setattr("fedcipher.watch.app._CACHE_SECONDS", 600)
    run = WatchedRun(watched.folder)
    with TestClient(dashboard(run, ["testserver"])) as browser:
        with ThreadPoolExecutor(20) as pool:
            pages = list(pool.map(lambda _: browser.get("/").text, range(40)))
        assert len(drawn) == 1 and all("picture 1" in page for page in pages)
        monkeypatch.setattr(run, "state", lambda: "another round has ended")
        assert browser.get("/content?seen=before").text == "picture 2"
        # What a key opens may come without a change of the run.
        monkeypatch.setattr("fedcipher.watch.app._CACHE_SECONDS", -1)
        monkeypatch.setattr(run, "state", lambda: "one more")
        assert ["picture 3" in browser.get("/").text, "picture 4" in browser.get("/").text] == [True, True]


def test_a_dashboard_of_nothing_is_refused(tmp_path, capsys):
    assert cli.main(["dashboard", str(tmp_path)]) == 2
    assert "has no journal" in capsys.readouterr().err


@pytest.mark.parametrize("listen", ["8080", "127.0.0.1:x", "127.0.0.1:70000", ":", "nowhere.invalid:80"])
def test_where_it_cannot_listen(watched, listen, capsys):
    assert cli.main(["dashboard", str(watched.folder), "--listen", listen]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_port_that_is_taken(watched, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert cli.main(["dashboard", str(watched.folder), "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]) == 2
    assert "in use" in capsys.readouterr().err


def test_figures_of_a_round():
    clients = [
        ClientRecord(1, 0, {"encrypt_seconds": 1.0, "upload_bytes": 10.0}),
        ClientRecord(2, 1, {"encrypt_seconds": 3.0, "upload_bytes": 30.0}),
        ClientRecord(3, 2, {"encrypt_seconds": 9.0}, "refused", refused=True),
        ClientRecord(4, None, {}, "no answer"),
    ]
    metrics = {"evaluate": {"accuracy": 0.5, "confusion": [1, 2]}, "server": {"loss": 2}}
    known = {"elements": 4, "counted": {"clipped": 0.5, "train_seconds": 7.0}}
    seen = {"clients": clients, "late": [4], "aggregate_seconds": 0.5, "wall_seconds": 8.0}
    clear = {
        **{"clients/accepted": 2, "clients/left_out": 2, "clients/refused": 1, "clients/late": 1},
        **{"seconds/round": 8, "seconds/aggregate": 0.5, "seconds/encrypt": 2},
        **{"bytes/aggregate": 0, "bytes/upload": 20, "finished": 1},
    }
    assert figures(RoundRecord(7, **seen)) == clear
    opened = {"clipped": 0.125, "seconds/train": 7, "evaluate/accuracy": 0.5, "server/loss": 2}
    assert figures(RoundRecord(7, **seen, **known, metrics=metrics)) == {**clear, **opened}


def test_a_line_a_round(tmp_path, rng):
    log = JsonLines(tmp_path / "rounds.jsonl")
    run = Watched(tmp_path, rng, log)
    log(RoundRecord(4, metrics={"server": {"loss": float("nan")}}, unfinished="it has 1 usable updates and needs 3"))
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4] and lines[3]["unfinished"].startswith("it has 1 usable")
    assert lines[3]["server/loss"] is None and lines[0]["who_was_left_out"] == []
    assert lines[1].items() >= figures(run.strategy.rounds[1]).items()
    assert lines[1]["who_was_left_out"] == [{"node": 1002, "client": 2, "reason": f"StrategyError: {EVIL}"}]


def test_who_has_a_key_logs_the_metrics_of_a_run_of_others(watched, key, opened, tmp_path):
    log = JsonLines(tmp_path / "rounds.jsonl")
    follow(watched.folder, log, key=key)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3] and lines[0]["train/loss"] == 1.5
    assert all(line.items() >= figures(made).items() for line, made in zip(lines, opened, strict=True))


def test_tensorboard_reads_what_is_logged(tmp_path, rng):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TensorBoard(tmp_path / "log")
    run = Watched(tmp_path, rng, log)
    log.close()
    read = EventAccumulator(str(tmp_path / "log"))
    read.Reload()
    tags = read.Tags()["tensors"]
    assert set(figures(run.strategy.rounds[0])) <= set(tags)
    points = [(e.step, float(e.tensor_proto.float_val[0])) for e in read.Tensors("clients/accepted")]
    assert points == [(1, 4.0), (2, 3.0), (3, 4.0)]


def test_mlflow_reads_what_is_logged(tmp_path, rng, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    log = MLflow(run_name="ours")
    Watched(tmp_path, rng, log)
    name = mlflow.active_run().info.run_id
    log.close()
    assert mlflow.active_run() is None
    points = mlflow.tracking.MlflowClient().get_metric_history(name, "clients/accepted")
    assert [(p.step, p.value) for p in points] == [(1, 4.0), (2, 3.0), (3, 4.0)]


def test_wandb_is_given_what_is_logged(tmp_path, rng, monkeypatch):
    pytest.importorskip("wandb")
    log = WandB(mode="offline", dir=str(tmp_path), project="fedcipher")
    Watched(tmp_path, rng, log)
    assert log._run.summary["clients/accepted"] == 4
    log.close()
    assert any(Path(tmp_path).rglob("*.wandb"))


def test_a_logger_that_fails_ends_no_run(tmp_path, rng, caplog):
    class Failing(TensorBoard):
        def __init__(self):
            pass

        def _write(self, record, values):
            raise RuntimeError("the disk is full")

    Watched(tmp_path, rng, Failing())
    assert "Failing: round 3 is not logged: the disk is full" in caplog.text


def test_a_logger_without_its_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(errors.DependencyError, match=r"fedcipher\[wandb\]"):
        WandB()


@pytest.mark.long
def test_a_training_shows_its_own_page(tmp_path):
    """`fedcipher train --dashboard`: from before there is a run until the training ends."""
    command = [sys.executable, "-u", "-m", "fedcipher.cli", "train", "--dashboard", "--clients", "3", "--rounds", "2"]
    command += ["--out", str(tmp_path / "out")]
    seen = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as training:
        line = next(line for line in training.stdout if line.startswith("dashboard: "))
        while training.poll() is None:
            try:
                page = get(line.split()[1])[2]
            except OSError:
                break
            seen |= {text for text in SEEN if text in page}
            time.sleep(0.3)
        training.stdout.read()
    assert training.returncode == 0 and seen == SEEN
