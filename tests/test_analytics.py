"""Federated analytics: sums of what clients answer, and nothing else, are opened."""

import fedcipher
import numpy as np
import pytest
from fedcipher import errors, keys
from fedcipher.flower import exact, protocol
from fedcipher.flower.analytics import ANSWER, QUERY, EncryptedSum, query_mod, secure_sum
from fedcipher.flower.refusal import reference_of
from flower_harness import LocalGrid
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

CLIENTS = 4
QUESTION = RecordDict({"config": ConfigRecord({"feature": "age", "bins": [0, 50, 100]})})


def federation(tmp_path, answers, *, name="flashe", codec=None, mods=(query_mod,), tamper=None, **params):
    """A grid whose client k answers ``answers[k]``, its keys, and what the clients were asked."""
    committee = {"members": CLIENTS} if name == "oneshot" else {}
    scheme = fedcipher.scheme(name, clients=CLIENTS, codec=codec or fedcipher.Codec(bits=16), **committee, **params)
    folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")
    app, asked = ClientApp(mods=list(mods)), []

    @app.query()
    def query(msg, ctxt):
        asked.append(msg.content)
        held = answers[ctxt.node_config["partition-id"]]
        content = held if isinstance(held, RecordDict) else RecordDict({"result": MetricRecord(held)})
        return Message(content, reply_to=msg)

    return LocalGrid(app, CLIENTS, folder, tamper), folder, asked


CODECS = [
    ("flashe", fedcipher.Codec(bits=16)),
    ("flashe", fedcipher.Codec(bits=24, clip=0.3)),
    ("flashe", fedcipher.Codec(bits=4, clip="aciq", margin=1.7)),
    ("flashe", fedcipher.Codec(bits=8, target="delta", start=3.0)),
    ("bfv", fedcipher.Codec(bits=12)),
    ("plain", fedcipher.Codec(bits=20)),
    ("oneshot", fedcipher.Codec(bits=16)),
]


@pytest.mark.parametrize(("name", "codec"), CODECS)
def test_totals_are_exact_whatever_the_codec(tmp_path, rng, name, codec):
    least, most = -(2**63), 2**63 - 1
    tables = rng.integers(least, most, (CLIENTS, 40), endpoint=True).tolist()
    answers = [{"table": table, "n": 10 + k, "edge": [least, most, 0, -1]} for k, table in enumerate(tables)]
    grid, folder, _ = federation(tmp_path, answers, name=name, codec=codec)
    total = secure_sum(grid, QUESTION, folder).open(folder / "client-2.key")
    assert total["table"] == [sum(column) for column in zip(*tables, strict=True)]
    assert total["n"] == 10 + 11 + 12 + 13
    assert total["edge"] == [CLIENTS * least, CLIENTS * most, 0, -CLIENTS]


def test_fractions_are_exact_in_units_of_the_resolution(tmp_path):
    answers = [{"sum": 0.1, "all": 3}, {"sum": 0.2, "all": 4}, {"sum": -7.3, "all": 5.0}, {"sum": 0.0004, "all": 0}]
    grid, folder, _ = federation(tmp_path, answers)
    total = secure_sum(grid, QUESTION, folder, resolution=0.001).open(folder / "client-0.key")
    assert total == {"all": 12.0, "sum": -7.0}


def test_the_app_is_asked_what_the_server_asked_and_no_number_travels(tmp_path):
    answers = [{"income": [71_234_567_890 + k, 5]} for k in range(CLIENTS)]
    grid, folder, asked = federation(tmp_path, answers)
    secure_sum(grid, QUESTION, folder)
    assert [dict(content["config"]) for content in asked] == [dict(QUESTION["config"])] * CLIENTS
    assert all(QUERY not in content for content in asked)
    for _, reply in grid.received:
        assert not reply.content.metric_records
        assert dict(reply.content.config_records) == {ANSWER: ConfigRecord({"names": ["income"], "lengths": [2]})}
        ((name, array),) = reply.content.array_records["arrays"].items()
        assert name == protocol.UPDATE
        limbs = [(number + 2**63) >> shift & 0x7FFF for number in answers[0]["income"] for shift in range(0, 64, 15)]
        assert np.asarray(limbs, np.uint16).tobytes()[:6] not in array.data


def test_a_sum_opens_elsewhere_from_a_file(tmp_path):
    grid, folder, _ = federation(tmp_path, [{"n": k} for k in range(CLIENTS)])
    secure_sum(grid, QUESTION, folder).save(tmp_path / "sum")
    read = EncryptedSum.load(tmp_path / "sum")
    assert read.open(folder / "client-1.key") == {"n": 6} and read.clients == [0, 1, 2, 3]
    with pytest.raises(errors.RunError, match="cannot be written"):
        secure_sum(grid, QUESTION, folder).save(tmp_path / "no folder" / "sum")
    (tmp_path / "no-sum").write_bytes(b"{}")
    with pytest.raises(errors.FrameError, match="is no encrypted sum"):
        EncryptedSum.load(tmp_path / "no-sum")


def test_a_client_that_was_asked_something_else_is_not_added(tmp_path):
    """Or a server could ask one client for its age and the others for nothing."""
    grid, folder, _ = federation(tmp_path, [{"n": 1}] * CLIENTS)
    real = grid.send_and_receive

    def lying(messages, timeout=None):
        (message,) = messages
        if message.metadata.dst_node_id == 1003:
            other = RecordDict({**message.content, "config": ConfigRecord({"feature": "income"})})
            message = Message(other, dst_node_id=1003, message_type="query")
        return real([message], timeout=timeout)

    grid.send_and_receive = lying
    made = secure_sum(grid, QUESTION, folder)
    assert made.clients == [0, 1, 2] and "ModelMismatchError" in made.left_out[1003]
    assert made.open(folder / "client-0.key") == {"n": 3}


def test_a_sum_that_was_changed_or_named_otherwise_does_not_open(tmp_path):
    grid, folder, _ = federation(tmp_path, [{"n": 1, "m": 2}] * CLIENTS)
    made = secure_sum(grid, QUESTION, folder)
    said = {**vars(made)}
    for change in (
        {"asked": "[]"},
        {"names": ["n", "m"]},
        {"resolution": 0.5},
        {"round": made.round + 1},
        {"clients": [0, 1, 2]},
        {"frame": made.frame[:-30] + bytes([made.frame[-30] ^ 1]) + made.frame[-29:]},
    ):
        with pytest.raises(errors.FedcipherError):
            EncryptedSum(**{**said, **change}).open(folder / "client-0.key")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"n": 0.5}, "not a whole number"),
        ({"n": float("nan")}, "cannot be added up"),
        ({"n": []}, "empty list"),
        ({"n": 1e30}, "does not fit 64 bits"),
        ({}, "one MetricRecord"),
        (RecordDict({"a": MetricRecord({"n": 1}), "b": ConfigRecord({"secret": "x"})}), "one MetricRecord"),
        (RecordDict({"a": ArrayRecord([np.ones(3)])}), "one MetricRecord"),
    ],
)
def test_an_answer_that_cannot_be_summed_stays_with_its_client(tmp_path, caplog, answer, says):
    grid, folder, _ = federation(tmp_path, [{"n": 1}, answer, {"n": 2}, {"n": 4}])
    made = secure_sum(grid, QUESTION, folder)
    assert made.clients == [0, 2, 3] and list(made.left_out) == [1001] and "reference" in made.left_out[1001]
    assert says in caplog.text
    assert made.open(folder / "client-0.key") == {"n": 7}


def test_without_enough_of_the_committee_there_is_no_sum(tmp_path):
    away = lambda sent, reply, k: None if "fedcipher.committee" in sent.content and k != 1 else reply  # noqa: E731
    grid, folder, _ = federation(tmp_path, [{"n": 1}] * CLIENTS, name="oneshot", tamper=away)
    with pytest.raises(errors.StrategyError, match="1 of 4 members of the committee"):
        secure_sum(grid, QUESTION, folder, committee_timeout=1)


def test_too_few_answers_are_no_sum(tmp_path):
    lost = federation(tmp_path, [{"n": 1}] * CLIENTS, tamper=lambda m, reply, k: reply if k < 2 else None)
    with pytest.raises(errors.StrategyError, match="2 usable answers, a sum needs 3"):
        secure_sum(lost[0], QUESTION, lost[1])
    with pytest.raises(errors.StrategyError, match="ask more nodes"):
        secure_sum(lost[0], QUESTION, lost[1], nodes=[1000, 1001])


def test_an_answer_in_the_clear_is_not_used(tmp_path):
    grid, folder, _ = federation(tmp_path, [{"n": 1}] * CLIENTS, mods=())
    with pytest.raises(errors.StrategyError, match=r"add fedcipher\.flower\.analytics\.query_mod"):
        secure_sum(grid, QUESTION, folder)


def test_an_answer_with_other_names_is_left_out_and_says_which(tmp_path):
    # Also where it came first.
    for odd in (1, 0):
        answers = [{"m": 1} if k == odd else {"n": 1} for k in range(CLIENTS)]
        grid, folder, _ = federation(tmp_path / str(odd), answers)
        made = secure_sum(grid, QUESTION, folder)
        assert "['m'] of lengths [0], most have ['n'] of lengths [0]" in made.left_out[1000 + odd]
        assert made.open(folder / "client-1.key") == {"n": 3} and odd not in made.clients
    # Of each kind too few: nothing is added.
    grid, folder, _ = federation(tmp_path / "split", [{"n": 1}, {"m": 1}, {"n": 1}, {"m": 1}])
    with pytest.raises(errors.StrategyError, match="2 usable answers, a sum needs 3"):
        secure_sum(grid, QUESTION, folder)


def test_a_query_without_settings_is_refused_and_a_round_is_answered_once(tmp_path, caplog):
    grid, folder, asked = federation(tmp_path, [{"n": 1}] * CLIENTS)
    (reply,) = grid.send_and_receive([Message(QUESTION, dst_node_id=1000, message_type="query")])
    assert reference_of(reply) and not asked and "without a round of SecureStrategy" in caplog.text
    secure_sum(grid, QUESTION, folder)
    again = grid.sent[-1][1]
    (reply,) = grid.send_and_receive([Message(again, dst_node_id=1003, message_type="query")])
    assert reference_of(reply)


@pytest.mark.parametrize(
    "settings",
    [
        {"round": True, "epoch": 1, "plan": b"", "resolution": 1.0},
        {"round": 0, "epoch": 1, "plan": b"", "resolution": 1.0},
        {"round": 1, "epoch": 1, "plan": b"", "resolution": -1.0},
        {"round": 1, "epoch": 1, "plan": b""},
    ],
)
def test_malformed_settings_are_refused_before_the_app_is_asked(tmp_path, settings):
    grid, _, asked = federation(tmp_path, [{"n": 1}] * CLIENTS)
    content = RecordDict({**QUESTION, QUERY: ConfigRecord(settings)})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=1000, message_type="query")])
    assert reference_of(reply) and not asked


@pytest.mark.parametrize(
    "codec",
    [
        fedcipher.Codec(rounding="stochastic"),
        fedcipher.Codec(bits=[8, 8]),
        fedcipher.Codec(clip=[1.0, 2.0]),
        fedcipher.Codec(target="delta", top=0.1),
    ],
)
def test_a_codec_that_is_not_exact_is_refused(codec):
    with pytest.raises(errors.ParameterError, match="make other keys"):
        exact.check_codec(codec)
