"""A site's people decide about a run before its app computes anything, and the server waits for them."""

import fedcipher
import numpy as np
import pytest
from fedcipher import keys
from fedcipher.errors import CharterError, StrategyError
from fedcipher.federation.answers import Answer
from fedcipher.federation.app_inputs import digest_of_context
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.key_holder import key_holder_of
from fedcipher.federation.client.session import ClientSession, Work
from fedcipher.federation.messages import CONFIG, CONSENT, Config, Message
from fedcipher.federation.refusal import refused
from fedcipher.federation.server import consent
from fedcipher.federation.server.link import reply_from
from fedcipher.federation.server.query_sum import QueryRun
from fedcipher.federation.server.run import ServerRun
from fedcipher.federation.server.setup import RunSetup
from fedcipher.keys.provider import server_keys

CLIENTS = 4


class Site:
    """A client whose people agree after ``asked`` questions; never if None; who refuse if negative."""

    def __init__(self, key, asked):
        self.left, self.computed, self.seen = asked, 0, []
        self.session = ClientSession(
            lambda: key_holder_of({"fedcipher-key": str(key)}, {}), lambda: digest_of_context({}, "x"), consents=self
        )

    def given(self, digest, document):
        self.seen.append((digest, document))
        if self.left is None:
            return False
        if self.left < 0:
            raise CharterError("this site refuses the run")
        self.left = max(self.left - 1, 0)
        return self.left == 0

    def answer(self, message):
        try:
            opened = self.session.open(message, queries_too=True)
            if isinstance(opened, Work):
                with opened as work:
                    self.computed += 1
                    opened = self.session.seal(message, work, AppResult([x + 1 for x in work.arrays], {"n": 2.0}))
            return opened
        except Exception as error:
            return refused(message, error)


class Sites:
    """The `Link` of sites in this process."""

    def __init__(self, sites):
        self.sites, self.asked = sites, []

    def nodes(self):
        return list(range(len(self.sites)))

    def exchange(self, messages, *, until, enough=None, grace=None):
        return _Exchange([(message, self) for message in messages])

    def late(self, names, until):
        return iter(())


class _Exchange:
    def __init__(self, sent):
        self.asked, self.waiting, self._sent = [message.node for message, _ in sent], {}, sent

    def __iter__(self):
        for message, link in self._sent:
            link.asked.append(message)
            carried = Message.parse(message.to_bytes())
            yield reply_from(message.node, Message.parse(link.sites[message.node].answer(carried).to_bytes()))


@pytest.fixture
def begun(tmp_path, monkeypatch):
    monkeypatch.setattr(consent, "_ASK_AGAIN_SECONDS", 0.01)
    scheme = fedcipher.scheme("bfv", clients=CLIENTS)
    folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")

    def begin(asked, **options):
        sites = [Site(folder / f"client-{k}.key", n) for k, n in enumerate(asked)]
        run = ServerRun(RunSetup(folder, out=tmp_path / "run", **options))
        run.begin(["a"], [np.zeros(10, np.float32)], 1)
        return run, Sites(sites)

    return begin


def test_a_run_waits_until_every_site_has_agreed(begun):
    run, link = begun([1, 3, 5, 1], consent_timeout=30)
    run.run_round(1, link, link.nodes())
    assert run.record.unfinished is None and [site.computed for site in link.sites] == [1] * CLIENTS


def test_a_site_is_asked_before_it_gets_a_model(begun):
    run, link = begun([2] * CLIENTS, consent_timeout=30)
    run.run_round(1, link, link.nodes())
    first = [message for message in link.asked if CONSENT in message.content]
    assert first == link.asked[: len(first)] and len(first) == 2 * CLIENTS
    assert all(set(message.content) == {CONSENT} for message in first)
    assert {digest for site in link.sites for digest, _ in site.seen} == {run.charter.digest}
    assert {document for site in link.sites for _, document in site.seen if document} == {run.charter.encode()}


def test_sites_that_do_not_agree_in_time_are_left_out(begun):
    run, link = begun([1, 1, 1, None], consent_timeout=0.1)
    run.run_round(1, link, link.nodes())
    assert run.record.unfinished is None and [site.computed for site in link.sites] == [1, 1, 1, 0]


@pytest.mark.parametrize("state", [None, -1], ids=["waits", "refuses"])
def test_too_few_consents_end_the_run_in_words(begun, state):
    run, link = begun([1, 1, state, state], consent_timeout=0.1)
    with pytest.raises(StrategyError, match=r"2 of 4 sites have agreed .* nodes \[2, 3\] have not"):
        run.run_round(1, link, link.nodes())
    assert not any(site.computed for site in link.sites)


def test_a_site_that_refuses_is_asked_three_times(begun):
    run, link = begun([1, 1, 6, -1], consent_timeout=30)
    run.run_round(1, link, link.nodes())
    asked = [message.node for message in link.asked if CONSENT in message.content]
    assert asked.count(3) == 3 and asked.count(2) == 6


def test_a_query_needs_the_consent_of_people_too(begun, tmp_path):
    _, link = begun([1, 1, 1, None])
    answers = Answer.all_of(["n"], "answers", resolution=1.0, largest=10.0, how="sum")
    query = QueryRun(server_keys(tmp_path / "keys"), {"app": Config({"about": "n"})}, answers, "query")
    assert query.run(link, None, 30.0, 30.0).open(tmp_path / "keys" / "client-0.key") == {"n": 6}
    assert [site.computed for site in link.sites] == [1, 1, 1, 0]


def test_without_the_question_a_waiting_site_computes_nothing_and_the_server_says_why(begun):
    run, link = begun([1, 1, 1, None])
    run.run_round(1, link, link.nodes())
    assert [site.computed for site in link.sites] == [1, 1, 1, 0]
    assert "fedcipher guard approve" in next(client.left_out for client in run.record.clients if client.node == 3)


def test_consent_is_for_one_charter(begun):
    """A server that shows one charter and begins with another finds no consent."""
    run, link = begun([1] * CLIENTS, consent_timeout=5)
    site, shown = link.sites[0], run.charter.encode()
    site.given = lambda digest, document: digest == run.charter.digest
    site.session._consents = site
    link.sites[0].answer(Message(0, "train", {CONSENT: Config({"charter": run.charter.digest, "document": shown})}))
    other = {CONFIG: Config({"charter": bytes(32), "round": 1, "index": 1, "steps": 0})}
    reply = site.answer(Message(0, "train", other))
    assert reply.content == {CONSENT: Config({"state": "waiting"})} and site.computed == 0


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"charter": bytes(32), "document": b"{}"},
        {"charter": b"", "document": b""},
        {"charter": bytes(32), "document": b"", "round": 7},
        {"charter": "text", "document": b"{}"},
    ],
)
def test_a_malformed_question_is_refused(begun, record):
    _, link = begun([1] * CLIENTS)
    reply = reply_from(0, link.sites[0].answer(Message(0, "train", {CONSENT: Config(record)})))
    assert reply.reference is not None and not link.sites[0].seen


def test_the_policy_is_asked_before_people(begun, monkeypatch, tmp_path):
    policy = tmp_path / "policy.json"
    policy.write_text('{"fedcipher_policy": 1, "only_listed": true}')
    monkeypatch.setenv("FEDCIPHER_POLICY", str(policy))
    run, link = begun([1] * CLIENTS, consent_timeout=5)
    with pytest.raises(StrategyError, match="0 of 4 sites have agreed"):
        run.run_round(1, link, link.nodes())
    assert not any(site.seen for site in link.sites)


def test_a_question_whose_digest_names_another_charter_is_refused(begun):
    run, link = begun([1] * CLIENTS)
    record = Config({"charter": bytes(32), "document": run.charter.encode()})
    reply = reply_from(0, link.sites[0].answer(Message(0, "train", {CONSENT: record})))
    assert reply.reference is not None and not link.sites[0].seen


def test_a_question_with_a_field_of_a_round_is_refused(begun):
    run, link = begun([1] * CLIENTS)
    asked = {"charter": run.charter.digest, "document": run.charter.encode()}
    for more, refused_ in ({}, False), ({"round": 7}, True):
        record = Config({**asked, "signature": run.model.folder.signature, **more})
        reply = reply_from(0, link.sites[0].answer(Message(0, "train", {CONSENT: record})))
        assert (reply.reference is not None) == refused_
