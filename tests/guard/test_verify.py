"""Logs of a run verify against each other; a site's, or a server's, lie is found."""

import hashlib
import json
import shutil

import fedcipher
import pytest
from fedcipher import _native, keys
from fedcipher.cli.program import main
from fedcipher.errors import PlaintextError, StateError, UnsupportedError
from fedcipher.federation.canonical import encode
from fedcipher.federation.client import egress
from fedcipher.federation.client.key_holder import _EngineHolder
from fedcipher.federation.messages import CONTEXT
from fedcipher.federation.server.run_folder import read_run
from fedcipher.frame import inspect
from fedcipher.guard.audit import audit
from fedcipher.guard.log import Head, Log, logged_holder, parse_log, read_log
from fedcipher.guard.receipt import Receipt
from fedcipher.guard.report import as_html, as_markdown
from logged_sites import CLIENTS, begun, logs_of
from scheme_lists import of_committee, schemes_that

ROUNDS = 3


def ran(folder, scheme="flashe", **options):
    run, link = begun(folder, scheme, ROUNDS, **options)
    for index in range(1, ROUNDS + 1):
        run.run_round(index, link, link.nodes())
    run.close()
    return link


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of three rounds, with its logs, its run folder and its keys."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCIPHER_STATE_DIR", str(folder / "state"))
        patch.setenv("FEDCIPHER_HOME", str(folder / "home"))
        ran(folder)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def checked(folder, logs=None):
    server = keys.load_server(folder / "keys")[1]
    return audit(logs_of(folder) if logs is None else logs, [folder / "run"], [server])


def key_of(folder, client):
    return keys.load_client(folder / "keys" / f"client-{client}.key")[1]


def lines_of(path):
    return [fedcipher.guard.log.Line.parse(raw) for raw in parse_log(*read_log(path)).lines]


def rewritten(path, key, change):
    """Write the log again after ``change`` of its lines, each (kind, facts), with the site's own key."""
    lines = lines_of(path)
    number = parse_log(*read_log(path)).head.log
    shutil.rmtree(path)
    made = Log.__new__(Log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedcipher.guard.log.secrets, "token_bytes", lambda size: number)
        made.__init__(path, key)
    for kind, facts in change([(line.kind, dict(line.facts)) for line in lines[1:]]):
        made.record(kind, facts)


# --- honest runs -----------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", schemes_that())
def test_the_logs_of_a_run_verify_against_each_other(scheme, tmp_path):
    options = {"params": of_committee(scheme, members=3)} if of_committee(scheme, members=3) else {}
    ran(tmp_path, scheme, **options)
    result = checked(tmp_path)
    assert result.findings == [] and result.notes == []
    assert len(result.logs) == CLIENTS and result.heads >= ROUNDS * CLIENTS
    trained = [fate for fate in result.fates if fate.facts["purpose"] == "train"]
    # No site has opened the sum of the last round.
    known = [fate for fate in trained if fate.facts["index"] < ROUNDS]
    assert len(trained) == ROUNDS * CLIENTS
    assert all(fate.in_sum and len(fate.shown_by) == CLIENTS for fate in known)
    assert all(fate.in_sum is None for fate in trained if fate.facts["index"] == ROUNDS)


def test_a_frame_carries_the_head_that_covers_its_line(tmp_path):
    link = ran(tmp_path)
    for client, site in enumerate(link.sites):
        lines = parse_log(*read_log(tmp_path / "logs" / site.log._folder.name)).lines
        sent = [reply for reply in site.sent if reply is not None and CONTEXT in reply.content]
        heads = [Head.decode(reply.content[CONTEXT]["head"]) for reply in sent]
        assert len(heads) >= ROUNDS and all(head.holds(key_of(tmp_path, client).verify_key) for head in heads)
        for reply, head in zip(sent, heads, strict=True):
            frame = reply.content["arrays"]["fedcipher.update"].data
            assert hashlib.sha256(frame).hexdigest().encode() in lines[head.size - 1]


def test_the_run_folder_keeps_every_head(finished):
    kept = read_run(finished / "run").heads()
    assert len(kept) >= ROUNDS * CLIENTS and {client for client, _ in kept} == set(range(CLIENTS))


def test_a_torn_record_of_heads_is_written_over(folder):
    from fedcipher.federation.server.run_folder import RunFolder

    path = folder / "run" / "heads.bin"
    before = read_run(folder / "run").heads()
    path.write_bytes(path.read_bytes() + b"torn")
    assert read_run(folder / "run").heads() == before
    run = RunFolder.__new__(RunFolder)
    run.folder = folder / "run"
    run.keep_heads({2: bytes(120)})
    assert read_run(folder / "run").heads() == [*before, (2, bytes(120))]


def test_lines_have_no_value_of_a_model_and_no_metric(finished):
    for path in logs_of(finished):
        for line in lines_of(path):
            flat = str(line.facts)
            assert "accuracy" not in flat and "num-examples" not in flat and "." not in flat


def test_a_client_that_was_left_out_is_shown_as_absent_with_the_servers_reason(tmp_path):
    run, link = begun(tmp_path)
    answer = link.sites[3].answer

    def damaged(message):
        reply = answer(message)
        array = reply.content["arrays"]["fedcipher.update"]
        broken = array.data[:-9] + bytes(9)
        reply.content["arrays"]["fedcipher.update"] = type(array)(array.dtype, array.shape, array.stype, broken)
        return reply

    for index in range(1, ROUNDS + 1):
        link.sites[3].answer = damaged if index == 2 else answer
        run.run_round(index, link, link.nodes())
    run.close()
    result = checked(tmp_path)
    assert result.findings == []
    fates = [fate for fate in result.fates if fate.facts["index"] == 2 and fate.facts["purpose"] == "train"]
    assert [(fate.in_sum, "FrameError" in fate.why) for fate in fates] == [(True, False)] * 3 + [(False, True)]


# --- a site that lies ------------------------------------------------------------------------


def test_a_site_that_rewrites_its_past_is_found_by_heads_that_the_server_holds(folder):
    path = logs_of(folder)[1]
    rewritten(path, key_of(folder, 1), lambda lines: [line for line in lines if line[0] != "opened"])
    assert any("rewritten" in text or "end of this log is missing" in text for text in checked(folder).findings)


@pytest.mark.parametrize("kind", ["frame", "charter"])
def test_a_line_that_a_site_has_removed_is_found_without_heads(folder, kind):
    (folder / "run" / "heads.bin").unlink()
    path = logs_of(folder)[1]
    number = next(line for line in lines_of(path) if line.kind == kind).n - 1
    rewritten(path, key_of(folder, 1), lambda lines: lines[:number] + lines[number + 1 :])
    found = checked(folder).findings
    assert any("has no such frame" in text or "no line before accepts" in text for text in found), found


def test_a_log_whose_end_is_cut_or_that_is_begun_again_is_found(folder):
    path = logs_of(folder)[2]
    lines = lines_of(path)
    rewritten(path, key_of(folder, 2), lambda made: made[: len(lines) // 2])
    assert any("end of this log is missing" in text or "rewritten" in text for text in checked(folder).findings)
    shutil.rmtree(path)
    Log(path, key_of(folder, 2))
    assert any("begun again" in text for text in checked(folder).findings)


def test_an_older_copy_of_a_log_is_no_contradiction_and_a_fork_is(folder, tmp_path):
    path, old, fork = logs_of(folder)[0], tmp_path / "old", tmp_path / "fork"
    shutil.copytree(path, old)
    shutil.copytree(path, fork)
    Log(path, key_of(folder, 0)).record("refusal", {"reference": "one"})
    logs = logs_of(folder)
    result = checked(folder, [*logs, old])
    assert result.findings == [] and "earlier state" in result.notes[0]
    Log(fork, key_of(folder, 0)).record("refusal", {"reference": "other"})
    assert any("two different logs of one key" in text for text in checked(folder, [*logs, fork]).findings)


def test_a_log_that_another_party_signs_is_found(folder):
    path = logs_of(folder)[0]
    other = key_of(folder, 1)

    class Posing:
        client, epoch, scheme, fingerprint = 0, other.epoch, other.scheme, other.fingerprint
        verify_key, sign_log = other.verify_key, staticmethod(other.sign_log)

    rewritten(path, Posing(), lambda lines: lines)
    assert any("is not the key of client 0" in text for text in checked(folder).findings)


@pytest.mark.parametrize(
    "facts",
    [{}, {"reference": 1}, {"reference": "x", "more": "y"}, {"reference": ["x"]}, {"charter": "00"}],
)
@pytest.mark.parametrize("kind", ["refusal", "frame", "opened", "charter", "query", "log", "approval"])
def test_lines_with_odd_facts_are_findings_and_no_errors(folder, kind, facts):
    path = logs_of(folder)[0]
    Log(path, key_of(folder, 0)).record(kind, facts)
    result = checked(folder)
    assert result.findings
    assert as_html(result) and as_markdown(result)


def test_a_log_whose_first_line_names_no_key_is_a_finding(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(fedcipher.guard.log, "START", "beginning")
    Log(tmp_path / "log", key_of(folder, 0))
    assert any("not the start" in text for text in checked(folder, [tmp_path / "log"]).findings)


# --- a server that lies ----------------------------------------------------------------------


def changed(path, key, change):
    """Write the log at ``path`` again with other opened sums, as a site would that was shown them."""

    def all_of(lines):
        return [(kind, change(facts) if kind == "opened" else facts) for kind, facts in lines]

    rewritten(path, key, all_of)


def test_a_server_that_shows_two_sites_different_sums_is_found(folder):
    (folder / "run" / "heads.bin").unlink()

    def without_last(facts):
        sums = [{**each, "clients": each["clients"][:-1]} for each in facts["sums"]]
        return {**facts, "sums": sums, "after": "00" * 32}

    changed(logs_of(folder)[1], key_of(folder, 1), without_last)
    found = checked(folder).findings
    assert any("opened different sums" in text for text in found)
    assert any("folder has another sum of this number" in text for text in found)


def test_a_sum_of_another_model_is_found(folder):
    (folder / "run" / "heads.bin").unlink()
    changed(logs_of(folder)[1], key_of(folder, 1), lambda facts: {**facts, "bound": "11" * 32})
    assert any("made for another model or round" in text for text in checked(folder).findings)


def test_sites_that_were_shown_different_charters_are_found(folder):
    (folder / "run" / "heads.bin").unlink()

    def other(lines):
        return [(kind, {**facts, "charter": "22" * 32} if "charter" in facts else facts) for kind, facts in lines]

    rewritten(logs_of(folder)[1], key_of(folder, 1), other)
    assert any("accepted different charters" in text for text in checked(folder).findings)


def test_a_head_that_the_site_did_not_sign_is_found(folder):
    path = folder / "run" / "heads.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert any("did not sign" in text for text in checked(folder).findings)


def test_a_damaged_run_folder_is_a_finding(folder):
    (folder / "run" / "run.json").write_bytes(b"{")
    assert any("damaged" in text for text in checked(folder).findings)


# --- the command -----------------------------------------------------------------------------


def verify(folder, *more):
    logs = [str(path) for path in logs_of(folder)]
    return main(["verify", *logs, "--run", str(folder / "run"), "--keys", str(folder / "keys"), *more])


@pytest.mark.parametrize("ending", ["html", "md"])
def test_the_command_writes_a_report_and_ends_well_for_honest_logs(folder, ending, capsys):
    assert verify(folder, "--out", str(folder / f"report.{ending}")) == 0
    report = (folder / f"report.{ending}").read_text()
    assert "No contradiction was found" in report and "Limits of this report" in report
    frame = next(line for line in lines_of(logs_of(folder)[0]) if line.kind == "frame")
    assert frame.facts["sha256"] in report
    assert "0 findings" in capsys.readouterr().out


def test_the_command_fails_and_names_a_forged_line(folder, capsys):
    path = logs_of(folder)[0] / "lines.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"kind":"frame"', b'"kind":"query"', 1))
    assert verify(folder) == 2
    assert "was changed after it was signed" in capsys.readouterr().out


def test_a_report_does_not_replace_a_log(folder, capsys):
    assert verify(folder, "--out", str(logs_of(folder)[0] / "lines.jsonl")) != 0
    assert "would replace" in capsys.readouterr().err


def test_text_of_a_hostile_log_has_no_meaning_in_a_report(folder):
    path, bad = logs_of(folder)[0], "<script>alert(1)</script>|`x`\x1b[31m"
    charter = next(line for line in lines_of(path) if line.kind == "charter").facts["charter"]
    (folder / "run" / "heads.bin").unlink()
    Log(path, key_of(folder, 0)).record("approval", {"charter": charter, "app": "", "settings": "", "by": bad})
    result = checked(folder)
    assert result.findings == []
    assert "<script>" not in as_html(result) and "\x1b" not in as_html(result)
    assert "<script>" not in as_markdown(result).replace("\\<", "")


def test_a_site_with_an_engine_is_told_that_it_keeps_no_log(monkeypatch):
    holder = _EngineHolder.__new__(_EngineHolder)
    holder.recorder = None
    monkeypatch.setattr(fedcipher.guard.log, "key_holder_of", lambda own, run: holder)
    with pytest.raises(UnsupportedError, match="use a key file"):
        logged_holder({"fedcipher-log": "/logs"}, {})


def test_a_refusal_is_a_line_with_its_reference_alone(tmp_path):
    run, link = begun(tmp_path)
    run.run_round(1, link, link.nodes())
    again = link.sites[0].answer(link.asked[0])
    run.close()
    refusal = lines_of(logs_of(tmp_path)[0])[-1]
    assert refusal.kind == "refusal" and set(refusal.facts) == {"reference"}
    assert refusal.facts["reference"] in again.content["fedcipher.refused"]["text"]


def test_nothing_leaves_if_the_line_cannot_be_written(tmp_path, monkeypatch):
    run, link = begun(tmp_path)
    run.run_round(1, link, link.nodes())
    before = len(link.asked)

    def no_room(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fedcipher.guard.log, "create_private", no_room)
    run.run_round(2, link, link.nodes())
    monkeypatch.undo()
    assert len(link.asked) > before
    assert all(site.sent == site.sent[: len(site.sent)] for site in link.sites)
    assert run.record.unfinished is not None and not run.record.accepted
    run.close()


# --- receipts --------------------------------------------------------------------------------


def test_a_receipt_shows_one_line_and_no_other(folder, capsys):
    path, out = logs_of(folder)[0], folder / "line.receipt"
    for line in lines_of(path):
        assert main(["verify", str(path), "--line", str(line.n), "--out", str(out)]) == 0
        assert Receipt(out.read_bytes()).line == line
        salts = [other.raw for other in lines_of(path) if other.n != line.n]
        assert not any(raw.decode() in json.loads(out.read_bytes())["line"] for raw in salts)
    capsys.readouterr()
    assert main(["verify", str(out), "--keys", str(folder / "keys")]) == 0
    assert f"line {line.n} of a log" in capsys.readouterr().out


def test_a_changed_receipt_is_refused(folder):
    path, out = logs_of(folder)[0], folder / "line.receipt"
    assert main(["verify", str(path), "--line", "2", "--out", str(out)]) == 0
    content = out.read_bytes()
    for at in range(len(content)):
        with pytest.raises(StateError):
            Receipt(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


@pytest.mark.parametrize("number", [-1, 10**6])
def test_a_receipt_of_a_line_that_its_log_cannot_have_is_refused(folder, number):
    path, out = logs_of(folder)[0], folder / "line.receipt"
    assert main(["verify", str(path), "--line", "2", "--out", str(out)]) == 0
    receipt = json.loads(out.read_bytes())
    receipt["line"] = encode({**json.loads(receipt["line"]), "n": number}).decode()
    with pytest.raises(StateError, match="of this number"):
        Receipt(encode(receipt))


def test_a_receipt_of_a_key_that_is_not_the_sites_is_refused(folder, tmp_path, capsys):
    other = fedcipher.scheme("flashe", clients=3).keygen(3).client(0)
    Log(tmp_path / "other", other)
    out = tmp_path / "line.receipt"
    assert main(["verify", str(tmp_path / "other"), "--line", "0", "--out", str(out)]) == 0
    assert main(["verify", str(out), "--keys", str(folder / "keys")]) == 2
    assert "a key that --keys does not have" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["-1", "99999"])
def test_a_line_that_a_log_lacks_gives_no_receipt(folder, number, capsys):
    path, out = logs_of(folder)[0], folder / "line.receipt"
    assert main(["verify", str(path), f"--line={number}", "--out", str(out)]) == 2
    assert "has the lines 0 to" in capsys.readouterr().err and not out.exists()


# --- what one check alone finds --------------------------------------------------------------


def test_an_old_copy_that_was_put_back_is_found_as_a_missing_end(folder):
    path, key = logs_of(folder)[1], key_of(folder, 1)
    parsed = parse_log(*read_log(path))
    kept = parsed.lines[:-3]
    tree = _native.LogTree()
    for line in kept:
        tree.push(line)
    signed = Head(parsed.head.log, len(kept), tree.root(), b"")
    head = Head(signed.log, signed.size, signed.root, key.sign_log(signed.encode()))
    (path / "lines.jsonl").write_bytes(b"".join(line + b"\n" for line in kept))
    (path / "head.json").write_bytes(encode({"head": head.encode().hex(), "line": kept[-1].decode()}))
    assert any("the end of this log is missing" in text for text in checked(folder).findings)


def test_a_log_that_was_written_anew_with_more_lines_is_found_as_rewritten(folder):
    more = [("refusal", {"reference": "0"})] * 5
    rewritten(logs_of(folder)[1], key_of(folder, 1), lambda lines: [*lines, *more])
    assert any("this log was rewritten" in text for text in checked(folder).findings)


@pytest.mark.parametrize(("kind", "said"), [("log", "is out of place"), ("frame", "is a second frame of number")])
def test_a_second_start_and_a_second_frame_of_a_number_are_found(folder, kind, said):
    path = logs_of(folder)[0]
    facts = next(line for line in lines_of(path) if line.kind == kind).facts
    Log(path, key_of(folder, 0)).record(kind, facts)
    assert any(said in text for text in checked(folder).findings)


@pytest.mark.parametrize("head", [b"", bytes(119), bytes(121), "text", 1])
def test_nothing_but_a_head_leaves_as_a_head(tmp_path, head):
    reply = ran(tmp_path).sites[0].sent[-1].content
    number = inspect(reply["arrays"]["fedcipher.update"].data).round
    assert egress.checked(reply, "flashe", number, frozenset()) is reply
    reply[CONTEXT]["head"] = head
    with pytest.raises(PlaintextError, match="must not leave"):
        egress.checked(reply, "flashe", number, frozenset())


def test_a_frame_of_a_withdrawn_sum_alone_is_in_no_sum(folder):
    (folder / "run" / "heads.bin").unlink()

    def withdrawn(lines):
        for kind, facts in lines:
            yield kind, facts
            if kind == "opened" and facts["purpose"] == "train":
                sums = [{**each, "clients": [c for c in each["clients"] if c[0] != 3]} for each in facts["sums"]]
                yield kind, {**facts, "sums": sums, "after": "33" * 32}

    for client, path in enumerate(logs_of(folder)):
        rewritten(path, key_of(folder, client), withdrawn)
    known = [fate for fate in checked(folder).fates if fate.in_sum is not None and fate.facts["purpose"] == "train"]
    assert known and all(fate.in_sum == (fate.client != 3) for fate in known)
