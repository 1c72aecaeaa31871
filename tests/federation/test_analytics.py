"""Federated analytics: sums of what clients answer, and nothing else, are opened."""

import json
import os
from dataclasses import replace

import fedcipher
import numpy as np
import pytest
from fedcipher import errors, keys
from fedcipher.adapters.flower.analytics import EncryptedSum, query_mod, secure_sum
from fedcipher.dp import Privacy
from fedcipher.federation import messages as protocol
from fedcipher.federation.answers import Answer
from fedcipher.federation.client.key_holder import _holders
from fedcipher.federation.server.set_memory import ServerSets
from fedcipher.keys.provider import server_keys
from fedcipher.keys.store import home
from fedcipher.schemes.base import state_dir
from flower_harness import LocalGrid, reference_of
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from scheme_lists import adds, of_committee, one_of_each_kind_of_key, schemes_that

CLIENTS = 4
KILLED = ["the process is killed"]
QUESTION = RecordDict({"config": ConfigRecord({"feature": "age", "bins": [0, 50, 100]})})


def federation(tmp_path, answers, *, name="flashe", codec=None, mods=(query_mod,), tamper=None, **params):
    """A grid whose client k answers ``answers[k]``, its keys, and what the clients were asked."""
    committee = of_committee(name, members=CLIENTS)
    scheme = fedcipher.scheme(name, clients=CLIENTS, codec=codec or fedcipher.Codec(bits=16), **committee, **params)
    folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")
    app, asked = ClientApp(mods=list(mods)), []

    @app.query()
    def query(msg, ctxt):
        asked.append(msg.content)
        if answers == KILLED:
            os._exit(9)
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
    ("flashe", fedcipher.Codec(rounding="stochastic")),
    ("flashe", fedcipher.Codec(bits=[8, 12])),
    ("flashe", fedcipher.Codec(target="delta", top=0.1)),
]


@pytest.mark.parametrize(("name", "codec"), CODECS)
def test_totals_are_exact_whatever_the_codec(tmp_path, rng, name, codec):
    least, most = -(2**63), 2**63 - 1
    tables = rng.integers(least, most, (CLIENTS, 40), endpoint=True).tolist()
    answers = [{"table": table, "n": 10 + k, "edge": [least, most, 0, -1]} for k, table in enumerate(tables)]
    grid, folder, _ = federation(tmp_path, answers, name=name, codec=codec)
    named = [Answer("table", 40, 1.0, 2.0**63, "sum"), "n", Answer("edge", 4, 1.0, 2.0**63, "sum")]
    total = secure_sum(grid, QUESTION, folder, answers=named).open(folder / "client-2.key")
    assert total["table"] == [sum(column) for column in zip(*tables, strict=True)]
    assert total["n"] == 10 + 11 + 12 + 13
    assert total["edge"] == [CLIENTS * least, CLIENTS * most, 0, -CLIENTS]


def test_fractions_are_exact_in_units_of_the_resolution(tmp_path):
    answers = [{"sum": 0.1, "all": 3}, {"sum": 0.2, "all": 4}, {"sum": -7.3, "all": 5.0}, {"sum": 0.0004, "all": 0}]
    grid, folder, _ = federation(tmp_path, answers)
    total = secure_sum(grid, QUESTION, folder, answers=["all", "sum"], resolution=0.001, largest=1e9).open(
        folder / "client-0.key"
    )
    assert total == {"all": 12.0, "sum": -7.0}


def test_the_app_is_asked_what_the_server_asked_and_no_number_travels(tmp_path):
    answers = [{"income": [71_234_567_890 + k, 5]} for k in range(CLIENTS)]
    grid, folder, asked = federation(tmp_path, answers)
    secure_sum(grid, QUESTION, folder, answers=[Answer("income", 2, 1.0, 2.0**63, "sum")])
    assert [dict(content["config"]) for content in asked] == [dict(QUESTION["config"])] * CLIENTS
    assert all(protocol.QUERY not in content for content in asked)
    for _, reply in grid.received:
        assert not reply.content.metric_records
        assert list(reply.content.config_records) == [protocol.CONTEXT]
        ((name, array),) = reply.content.array_records["arrays"].items()
        assert name == protocol.UPDATE
        limbs = [(number + 2**63) >> shift & 0x7FFF for number in answers[0]["income"] for shift in range(0, 64, 15)]
        assert np.asarray(limbs, np.uint16).tobytes()[:6] not in array.data


def test_a_sum_opens_elsewhere_from_a_file(tmp_path):
    grid, folder, _ = federation(tmp_path, [{"n": k} for k in range(CLIENTS)])
    secure_sum(grid, QUESTION, folder, answers=["n"]).save(tmp_path / "sum")
    read = EncryptedSum.load(tmp_path / "sum")
    assert read.open(folder / "client-1.key") == {"n": 6} and read.clients == [0, 1, 2, 3]
    with pytest.raises(errors.RunError, match="cannot be written"):
        secure_sum(grid, QUESTION, folder, answers=["n"]).save(tmp_path / "no folder" / "sum")
    (tmp_path / "no-sum").write_bytes(b"{}")
    with pytest.raises(errors.FrameError, match="is not an encrypted sum"):
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
    made = secure_sum(grid, QUESTION, folder, answers=["n"])
    assert made.clients == [0, 1, 2] and "it refused" in made.left_out[1003]
    assert made.open(folder / "client-0.key") == {"n": 3}


def test_a_sum_that_was_changed_or_named_otherwise_does_not_open(tmp_path):
    grid, folder, _ = federation(tmp_path, [{"n": 1, "m": 2}] * CLIENTS)
    made = secure_sum(grid, QUESTION, folder, answers=["n", "m"])
    said = {**vars(made)}
    for change in (
        {"query": replace(made.query, asked={})},
        {"query": replace(made.query, answers=[replace(a, name=a.name * 2) for a in made.query.answers])},
        {"query": replace(made.query, answers=[replace(a, resolution=0.5) for a in made.query.answers])},
        {"query": replace(made.query, round=made.query.round + 1)},
        {"context": bytes(32)},
        {"clients": [0, 1, 2]},
        {"frame": made.frame[:-30] + bytes([made.frame[-30] ^ 1]) + made.frame[-29:]},
    ):
        with pytest.raises(errors.FedcipherError):
            EncryptedSum(**{**said, **change}).open(folder / "client-0.key")


@pytest.mark.parametrize(
    ("answer", "counts", "says"),
    [
        ({"n": 0.5}, 0, None),
        ({"n": float("nan")}, 0, None),
        ({"n": []}, 0, "are missing or have another length"),
        ({"n": 1e30}, 2**53, None),
        ({"n": -(10**400)}, -(2**53), None),
        ({"n": float("-inf")}, -(2**53), None),
        ({}, 0, "are missing or have another length"),
        ({"n": 5, "patient": 4711}, 5, None),
        (RecordDict({"a": MetricRecord({"n": 1}), "b": ConfigRecord({"secret": "x"})}), 1, None),
        (RecordDict({"a": ArrayRecord([np.ones(3)])}), 0, "the arrays of an evaluation's reply stay"),
    ],
)
def test_attack_15_no_answer_is_refused_whatever_the_app_returns(tmp_path, caplog, answer, counts, says):
    grid, folder, _ = federation(tmp_path, [{"n": 1}, answer, {"n": 2}, {"n": 4}])
    made = secure_sum(grid, QUESTION, folder, answers=["n"])
    assert made.clients == [0, 1, 2, 3] and not made.left_out
    assert len({len(protocol.frame_bytes(reply.content["arrays"][protocol.UPDATE])) for _, reply in grid.received}) == 1
    assert says is None or says in caplog.text
    assert made.open(folder / "client-0.key") == {"n": 7 + counts}


def test_attack_15_an_app_that_raises_answers_with_zeros(tmp_path, caplog):
    grid, folder, _ = federation(tmp_path, [{"n": 1}, object(), {"n": 2}, {"n": 4}])
    made = secure_sum(grid, QUESTION, folder, answers=["n"])
    assert made.clients == [0, 1, 2, 3] and "zeros that do not count" in caplog.text
    assert made.open(folder / "client-0.key") == {"n": 7} and "1 of 4" in caplog.text


def test_without_enough_of_the_committee_there_is_no_sum(tmp_path):
    away = lambda sent, reply, k: None if "fedcipher.committee" in sent.content and k != 1 else reply  # noqa: E731
    grid, folder, _ = federation(tmp_path, [{"n": 1}] * CLIENTS, name="oneshot", tamper=away)
    with pytest.raises(errors.StrategyError, match="1 of 4 members of the committee"):
        secure_sum(grid, QUESTION, folder, answers=["n"], committee_timeout=1)


def test_too_few_answers_are_no_sum(tmp_path):
    lost = federation(tmp_path, [{"n": 1}] * CLIENTS, tamper=lambda m, reply, k: reply if k < 2 else None)
    with pytest.raises(errors.StrategyError, match="2 usable answers, a sum needs 3"):
        secure_sum(lost[0], QUESTION, lost[1], answers=["n"])
    with pytest.raises(errors.StrategyError, match="ask more nodes"):
        secure_sum(lost[0], QUESTION, lost[1], answers=["n"], nodes=[1000, 1001])


def test_an_answer_in_the_clear_is_not_used(tmp_path):
    grid, folder, _ = federation(tmp_path, [{"n": 1}] * CLIENTS, mods=())
    with pytest.raises(errors.StrategyError, match=r"add fedcipher\.adapters\.flower\.query_mod"):
        secure_sum(grid, QUESTION, folder, answers=["n"])


def test_a_query_without_settings_is_refused_and_a_round_is_answered_once(tmp_path, caplog):
    grid, folder, asked = federation(tmp_path, [{"n": 1}] * CLIENTS)
    (reply,) = grid.send_and_receive([Message(QUESTION, dst_node_id=1000, message_type="query")])
    assert reference_of(reply) and not asked and "without a round of SecureStrategy" in caplog.text
    secure_sum(grid, QUESTION, folder, answers=["n"])
    again = grid.sent[-1][1]
    (reply,) = grid.send_and_receive([Message(again, dst_node_id=1003, message_type="query")])
    assert reference_of(reply)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"document": "text"},
        {"document": b"{}"},
        {"document": b"{}", "plan": 1},
        {"document": b"{}", "resolution": 1.0},
        {"document": b'{"fedcipher_query":1}'},
    ],
)
def test_malformed_settings_are_refused_before_the_app_is_asked(tmp_path, settings):
    grid, _, asked = federation(tmp_path, [{"n": 1}] * CLIENTS)
    content = RecordDict({**QUESTION, protocol.QUERY: ConfigRecord(settings)})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=1000, message_type="query")])
    assert reference_of(reply) and not asked


def test_attack_15_another_resolution_is_another_query_and_a_refused_one_is_spent(tmp_path, caplog):
    """Forty queries whose refusals depended on the answer measured it; now none refuses, and a site has a budget."""
    grid, folder, asked = federation(tmp_path, [{"n": k} for k in range(CLIENTS)])
    for k, context in enumerate(grid.contexts.values()):
        context.node_config["fedcipher-key"] = str(folder / f"client-{k}.key")
    for number in range(22):
        try:
            secure_sum(grid, QUESTION, folder, answers=["n"], resolution=2.0**-number, largest=1.0)
        except errors.StrategyError:
            break
    # Four clients of one site ask its policy once a query.
    assert number == 20 and len(asked) == 20 * CLIENTS and "20 queries in key epoch" in caplog.text
    with pytest.raises(errors.StrategyError, match="0 usable answers"):
        secure_sum(grid, QUESTION, folder, answers=[Answer("n", 65, 1.0, 1.0, "sum")])
    assert "65 numbers, and 64 are allowed" in caplog.text


def sites(tmp_path, *names, answers=None):
    """Federations whose clients are sites with a policy, all with one state folder."""
    answers = answers or [{"n": 1}] * CLIENTS
    made = [federation(tmp_path / name, answers) for name in names]
    for grid, folder, _ in made:
        for k, context in enumerate(grid.contexts.values()):
            context.node_config["fedcipher-key"] = str(folder / f"client-{k}.key")
    return made


def test_attack_15_the_twenty_first_query_is_refused_counted_over_two_key_sets(tmp_path, caplog):
    """Each set's clients have answered ten: a second set of keys is no second budget."""
    sets = sites(tmp_path, "one", "two")
    for number in range(20):
        grid, folder, _ = sets[number % 2]
        assert secure_sum(grid, QUESTION, folder, answers=["n"]).clients == [0, 1, 2, 3]
    for grid, folder, asked in sets:
        with pytest.raises(errors.StrategyError, match="0 usable answers"):
            secure_sum(grid, QUESTION, folder, answers=["n"])
        assert len(asked) == 10 * CLIENTS, "the app is not asked"
    assert caplog.text.count("this site has had 20 queries in key epoch 1") == 2 * CLIENTS


def refused_everywhere(site, caplog, why):
    """Whether all clients refuse a query in the same words, before the app is asked, and say why in their own logs."""
    (grid, folder, asked), before = site, len(site[2])
    grid.received.clear()
    caplog.clear()
    with pytest.raises(errors.StrategyError, match="0 usable answers"):
        secure_sum(grid, QUESTION, folder, answers=["n"])
    # `reference_of` knows one text, which says no cause.
    constant = [reply for _, reply in grid.received if reference_of(reply)]
    return len(constant) == CLIENTS and len(asked) == before and caplog.text.count(why) == CLIENTS


@pytest.mark.parametrize("most", [None, 3])
def test_attack_15_the_policy_says_how_many_queries_both_key_sets_have_also_after_a_restart(tmp_path, caplog, most):
    """Twenty without a policy file. New processes and newer policies count what was answered before."""
    place = home() / "policy.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    if most is not None:
        place.write_text(json.dumps({"fedcipher_policy": 1, "queries": most}))
    one, two = sites(tmp_path, "one", "two")
    for number in range(most or 20):
        grid, folder, _ = (one, two)[number % 2]
        assert secure_sum(grid, QUESTION, folder, answers=["n"]).clients == [0, 1, 2, 3]
    _holders.clear()
    for site in (one, two):
        assert refused_everywhere(site, caplog, f"this site has had {most or 20} queries in key epoch 1")
    place.write_text(json.dumps({"fedcipher_policy": 1, "queries": (most or 20) + 1}))
    assert secure_sum(two[0], QUESTION, two[1], answers=["n"]).clients == [0, 1, 2, 3]
    assert refused_everywhere(one, caplog, f"this site has had {(most or 20) + 1} queries")
    # None at all is not a number here: 0 is no limit, as the page says.
    place.write_text(json.dumps({"fedcipher_policy": 1, "queries": 0}))
    assert secure_sum(one[0], QUESTION, one[1], answers=["n"]).clients == [0, 1, 2, 3]


def test_attack_15_a_query_counts_before_the_app_is_asked_also_where_the_process_is_killed(tmp_path, caplog):
    """Each of two clients is killed while its app works; the site may answer two queries."""
    place = home() / "policy.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps({"fedcipher_policy": 1, "queries": 2}))
    answers = [{"n": 1}] * CLIENTS
    one, two = sites(tmp_path, "one", "two", answers=answers)
    for grid, folder, _ in (one, two):
        child = os.fork()
        if child == 0:
            answers[:] = KILLED
            secure_sum(grid, QUESTION, folder, answers=["n"])
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    for site in (one, two):
        assert refused_everywhere(site, caplog, "this site has had 2 queries in key epoch 1")
        assert not site[2]


@pytest.mark.parametrize("name", one_of_each_kind_of_key())
def test_attack_32_a_query_beside_others_sums_what_fits_or_says_why_and_what_helps(tmp_path, monkeypatch, name):
    """Four clients and a minimum of three; the server of another query remembers a sum of the first three."""
    params = of_committee(name, corrupt_clients=0, corrupt_members=0)
    grid, folder, _ = federation(tmp_path, [{"n": 1}] * CLIENTS, name=name, **params)
    provider, fitting = server_keys(folder), ServerSets.fitting

    def another():
        ServerSets("queries", provider.scheme, provider.current()).remember(range(3))

    def chosen(memory, clients):
        found = fitting(memory, clients)
        another()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ServerSets, "fitting", chosen)
        with pytest.raises(errors.StrategyError, match="another query has summed other clients since"):
            secure_sum(grid, QUESTION, folder, answers=["n"])
    # While the answers come in it is soon enough.
    grid.tamper = lambda message, reply, client: another() or reply
    assert secure_sum(grid, QUESTION, folder, answers=["n"]).clients == [0, 1, 2]
    grid.tamper = lambda message, reply, client: None if client == 0 else reply
    with pytest.raises(errors.StrategyError, match=r"no sum of these 3.*groups of at least 3.*left out: .*no answer"):
        secure_sum(grid, QUESTION, folder, answers=["n"])


def private(rounds=3, noise=1.0, bits=16):
    return fedcipher.Codec(bits=bits, privacy=Privacy(clip=0.5, noise_multiplier=noise, rounds=rounds, delta=1e-5))


def policy_of(**allowed):
    """A site's policy."""
    home().mkdir(parents=True, exist_ok=True)
    (home() / "policy.json").write_text(json.dumps({"fedcipher_policy": 1, **allowed}))
    (home() / "policy.json").chmod(0o600)


@pytest.mark.parametrize("name", schemes_that(adds))
def test_totals_under_privacy_have_the_noise_that_is_said(tmp_path, rng, name):
    ages, table = rng.uniform(-120, 120, (CLIENTS, 1500)), rng.uniform(-2, 2, (CLIENTS, 500))
    answers = [{"ages": a.tolist(), "table": t.tolist()} for a, t in zip(ages, table, strict=True)]
    policy_of(most_numbers=2000)
    grid, folder, _ = federation(tmp_path, answers, name=name, codec=private())
    named = [Answer("ages", 1500, 1.0, 120.0, "sum"), Answer("table", 500, 1.0, 2.0, "sum")]
    made = secure_sum(grid, QUESTION, folder, answers=named)
    total, noise = made.open(folder / "client-1.key"), made.noise(keys.load_client(folder / "client-1.key")[0])
    for answer, values, largest in (("ages", ages, 120.0), ("table", table, 2.0)):
        off = np.array(total[answer]) - values.sum(axis=0)
        assert 0.9 < off.std() / noise[answer] < 1.1 and abs(off.mean()) < 0.2 * noise[answer]
        # One client can change all numbers at once by this length.
        assert noise[answer] > largest * np.sqrt(2000)
    assert made.noise(fedcipher.scheme("flashe", clients=4)) == {"ages": 0.0, "table": 0.0}


def test_whatever_an_app_answers_is_within_its_largest(tmp_path):
    """Small noise shows what the clients have sent: too large is cut, missing and NaN are zero."""
    answers = [{"n": [10**400, 3, -4]}, {"n": [float("nan"), float("inf"), 1.0]}, {"n": 5}, {"m": 1}]
    grid, folder, _ = federation(tmp_path, answers, codec=private(noise=1e-3, bits=24))
    made = secure_sum(grid, QUESTION, folder, answers=[Answer("n", 3, 1.0, 10.0, "sum")])
    assert made.open(folder / "client-1.key")["n"] == pytest.approx([15.0, 13.0, -3.0], abs=1)


def test_a_query_spends_the_budget_of_updates(tmp_path):
    """The key's, and over all keys the site's."""
    policy_of(privacy_budgets=1)
    grid, folder, asked = federation(tmp_path, [{"n": 1}] * CLIENTS, codec=private(rounds=2))
    for _ in range(2):
        secure_sum(grid, QUESTION, folder, answers=["n"])
    before = len(asked)
    with pytest.raises(errors.StrategyError, match="usable answers"):
        secure_sum(grid, QUESTION, folder, answers=["n"])
    assert len(asked) == before, "refused before the app sees it"
    (spent,) = json.loads(next(state_dir().rglob("site.json")).read_text())["privacy"].values()
    assert spent["updates"] == 2 and max(spent["frames"].values()) == 2


def test_a_query_of_more_numbers_than_the_noise_fits_is_not_asked(tmp_path):
    grid, folder, asked = federation(tmp_path, [{"n": 1}] * CLIENTS, codec=private(bits=4))
    with pytest.raises(errors.ParameterError, match="use Codec"):
        secure_sum(grid, QUESTION, folder, answers=[Answer("n", 100, 1.0, 1.0, "sum")])
    assert not asked
