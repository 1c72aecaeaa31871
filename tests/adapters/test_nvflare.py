"""The parts of NVFlare's adapter that know no framework: a site's messages, and the server's link over tasks."""

import hashlib
import threading
import time
from functools import partial
from pathlib import Path

import fedcipher
import numpy as np
import pytest
from fedcipher import keys
from fedcipher.adapters.nvflare.link import APP_TASKS, JobLink, node_of
from fedcipher.adapters.nvflare.plan import content_of, plan_of, setup_of
from fedcipher.adapters.nvflare.site import MESSAGE, Site, app_digest, settings_in
from fedcipher.errors import DependencyError, KeyFormatError, RunError, StrategyError
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.messages import REFUSED, Message
from fedcipher.federation.optimiser_step import Optimiser, Steps
from fedcipher.federation.refusal import TEXT
from fedcipher.federation.server.run import ServerRun
from fedcipher.federation.server.run_folder import open_run
from scheme_lists import of_committee, schemes_that

SITES = ["hospital", "clinic", "practice"]
ROUNDS = 3
SECRET = 4711.5


class LocalJob:
    """The tasks of a job whose sites are threads: NVFlare's order of calls, without NVFlare.

    ``apps`` has a function (model) -> `AppResult` for each site. A site in ``dead`` takes no task.
    """

    def __init__(self, folder, apps, contexts=None):
        self.apps, self.dead, self.asked, self.sent = apps, set(), [], []
        contexts = contexts or {}
        self._sites = {
            name: Site(
                {"fedcipher-key": str(folder / f"client-{k}.key")}, hashlib.sha256(contexts.get(name, b"")).digest()
            )
            for k, name in enumerate(apps)
        }
        self._locks = {name: threading.Lock() for name in apps}

    def sites(self):
        return [name for name in self.apps if name not in self.dead]

    def aborted(self):
        return False

    def ended(self, handle):
        return handle in self.dead

    def start(self, site, task, raw, seconds, received):
        self.asked.append((site, task, raw is not None))
        if site not in self.dead:
            threading.Thread(target=self._work, args=(site, task, raw, received), daemon=True).start()
        return site

    def _work(self, name, task, raw, received):
        with self._locks[name]:
            found = self._answer(self._sites[name], self.apps[name], task, raw)
        if found is not None:
            self.sent.append(found)
        received(found)

    @staticmethod
    def _answer(site, app, task, raw):
        """As `DecryptTask`, the app and `EncryptResult` do; None is a return code without a message."""
        work = None if task == MESSAGE and raw is None else site.open(raw)
        if task == MESSAGE:
            return site.reply()
        if work is None:
            return None
        return site.reply(app(work.model))


def adds(step, examples=10):
    """An app that adds ``step`` to each value."""
    return lambda model: AppResult([x + np.float32(step) for x in model.values()], {"num-examples": examples})


def first_model():
    return {"weights": np.zeros((4, 3), np.float32), "bias": np.zeros(3, np.float32)}


def run_of(folder, out, job, *, rounds=ROUNDS, optimiser=None, settings=None, **options):
    """A run as `SecureFedAvg` runs it."""
    run = ServerRun(setup_of(str(folder), {"out": str(out), **options}))
    model = first_model()
    run.begin(list(model), list(model.values()), rounds, plan_of(run.setup, rounds, optimiser, settings or {}))
    link = JobLink(job)
    try:
        for index in range(run.done + 1, rounds + 1):
            nodes = link.wait_for(run.setup.minimum, 30)
            run.begin_round(index, link)
            asked = [Message(node, "train", content_of(settings or {})) for node in nodes]
            run.accept_train(run.gather(partial(link.exchange, run.ask("train", index, asked)), run.timeout))
            run.end_training(None)
    finally:
        run.close()
    return run


def keys_of(tmp_path, name, **options):
    try:
        made = fedcipher.scheme(
            name,
            clients=len(SITES),
            codec=fedcipher.Codec(bits=12, clip=2.0),
            **of_committee(name, members=3),
            **options,
        )
        return keys.save(made.keygen(len(SITES)), made, tmp_path / "keys")
    except DependencyError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", schemes_that())
def test_rounds_over_tasks_end_with_the_mean_under_every_scheme(name, tmp_path):
    folder = keys_of(tmp_path, name)
    job = LocalJob(folder, {site: adds(0.1 * k) for k, site in enumerate(SITES)})
    run = run_of(folder, tmp_path / "run", job)
    assert [record.accepted for record in run.rounds] == [3] * ROUNDS
    found = open_run(tmp_path / "run", folder / "client-0.key")
    for values in found.values():
        np.testing.assert_allclose(values, 0.1 * ROUNDS, atol=0.02)


def test_committee_messages_start_no_app(tmp_path):
    folder = keys_of(tmp_path, "oneshot")
    job = LocalJob(folder, {site: adds(0.1) for site in SITES})
    run_of(folder, tmp_path / "run", job)
    calls = [task for _, task, _ in job.asked]
    assert calls.count("train") == ROUNDS * len(SITES)
    assert calls.count(MESSAGE) > 0
    assert set(calls) <= {*APP_TASKS, MESSAGE}


def test_a_measured_round_trains_once(tmp_path):
    made = fedcipher.scheme("bfv", clients=len(SITES), codec=fedcipher.Codec(clip="auto"))
    folder = keys.save(made.keygen(len(SITES)), made, tmp_path / "keys")
    trained = []

    def app(model):
        trained.append(1)
        return adds(0.1)(model)

    run_of(folder, tmp_path / "run", LocalJob(folder, dict.fromkeys(SITES, app)))
    assert len(trained) == ROUNDS * len(SITES)


def test_a_site_that_dies_in_a_round_is_left_out(tmp_path):
    folder = keys_of(tmp_path, "flashe")

    def dies(model):
        job.dead.add("clinic")
        time.sleep(60)

    job = LocalJob(folder, {"hospital": adds(0.2), "clinic": dies, "practice": adds(0.2)})
    began = time.monotonic()
    run = run_of(folder, tmp_path / "run", job)
    assert time.monotonic() - began < 30
    assert [record.accepted for record in run.rounds] == [2] * ROUNDS
    lost = [client for client in run.rounds[0].clients if client.left_out]
    assert [client.node for client in lost] == [node_of("clinic")]


def test_sites_with_different_apps_do_not_sum(tmp_path):
    folder = keys_of(tmp_path, "bfv")
    job = LocalJob(folder, {site: adds(0.2) for site in SITES}, {"clinic": b"other"})
    run = run_of(folder, tmp_path / "run", job)
    assert all(record.accepted == 2 for record in run.rounds)


def refused_text(raw):
    return Message.parse(raw).content[REFUSED]["text"]


def test_every_other_task_gets_one_constant_refusal(tmp_path, caplog):
    folder = keys_of(tmp_path, "bfv")
    site = Site({"fedcipher-key": str(folder / "client-0.key")}, bytes(32))
    for raw in (None, b"", b"4711", "text", Message(0, "train").to_bytes(), {"weights": SECRET}):
        assert site.open(raw) is None
        text = refused_text(site.reply())
        assert text.startswith(TEXT) and len(text) == len(TEXT) + 8
    assert refused_text(site.reply()).startswith(TEXT)


def test_a_link_waits_for_enough_sites_and_says_so(tmp_path):
    job = LocalJob(tmp_path, {"hospital": adds(0)})
    with pytest.raises(StrategyError, match="1 sites are connected, and a round needs 2"):
        JobLink(job).wait_for(2, 0.1)
    job.aborted = lambda: True
    with pytest.raises(RunError, match="resume=True"):
        JobLink(job).wait_for(2, 0.1)


def test_settings_are_the_sites_own(tmp_path):
    (tmp_path / "local").mkdir()
    kit = tmp_path / "startup" / "fedcipher" / "client.key"
    assert settings_in(tmp_path / "local") == {"fedcipher-key": str(kit)}
    path = tmp_path / "local" / "fedcipher.json"
    path.write_text('{"fedcipher-key": "/etc/fedcipher/client-3.key"}')
    assert settings_in(tmp_path / "local") == {"fedcipher-key": "/etc/fedcipher/client-3.key"}
    path.write_text("no json")
    with pytest.raises(KeyFormatError, match="Write JSON"):
        settings_in(tmp_path / "local")


def test_the_apps_digest_is_of_its_code_and_configuration(tmp_path):
    custom = tmp_path / "custom"
    custom.mkdir()
    (custom / "client.py").write_text("train()")
    first = app_digest(tmp_path)
    (custom / ".__nvfl_sig.json").write_text("differs from job to job")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config_fed_server.json").write_text('{"resume": true}')
    assert app_digest(tmp_path) == first
    (custom / "client.py").write_text("leak()")
    assert app_digest(tmp_path) != first


def test_the_adapter_is_short():
    package = (Path(fedcipher.__file__).parent / "adapters" / "nvflare").glob("*.py")
    assert sum(len(path.read_text().splitlines()) for path in package) < 800


def test_the_clients_make_the_step_of_fedadam(tmp_path):
    folder, numbers = keys_of(tmp_path, "bfv"), (0.1, 0.9, 0.99, 1e-3)
    job = LocalJob(folder, {site: adds(0.2) for site in SITES})
    run_of(folder, tmp_path / "run", job, optimiser=["adam", *numbers])
    steps, expected = Steps(Optimiser("adam", numbers)), list(first_model().values())
    for index in range(1, ROUNDS + 1):
        expected = steps.step(expected, [np.full_like(x, 0.2) for x in expected], index)
    found = open_run(tmp_path / "run", folder / "client-0.key")
    for values, wanted in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(values, wanted, atol=0.01)
        assert not np.allclose(values, 0.2 * ROUNDS, atol=0.05)


def test_the_charter_lists_the_settings_of_the_app(tmp_path):
    folder = keys_of(tmp_path, "flashe")
    job = LocalJob(folder, {site: adds(0.2) for site in SITES})
    run = run_of(folder, tmp_path / "run", job, settings={"fedproxloss_mu": 0.1})
    listed = run.charter.settings["train"].at(2)
    assert listed["config:config"] == {"fedproxloss_mu": {"float": (0.1).hex()}}
    assert [record.accepted for record in run.rounds] == [3] * ROUNDS


def test_options_that_a_run_lacks_are_named():
    with pytest.raises(StrategyError, match="fraction_train"):
        setup_of("keys", {"fraction_train": 1.0})
