"""NVFlare's filters, with NVFlare's own Shareables: what leaves a site. `make e2e-nvflare` runs this file too."""

import subprocess
import sys
from pathlib import Path

import fedcipher
import numpy as np
import pytest
from fedcipher import keys

pytest.importorskip("nvflare", reason="NVFlare is absent; make e2e-nvflare runs this file")

from fedcipher.adapters.nvflare import filters
from fedcipher.adapters.nvflare import site as site_module
from fedcipher.adapters.nvflare.filters import DecryptTask, EncryptResult, NoAppExecutor
from fedcipher.adapters.nvflare.link import JobLink
from fedcipher.adapters.nvflare.plan import plan_of, setup_of
from fedcipher.adapters.nvflare.server import SecureFedAvg
from fedcipher.adapters.nvflare.site import MESSAGE
from fedcipher.errors import PlaintextError
from fedcipher.federation.messages import REFUSED, UPDATE, Message
from fedcipher.federation.server.run import ServerRun
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs

CLIENTS = 3
SECRET, TEXT = 4711.5, "patient 4711 has diagnosis X"


class Workspace:
    def __init__(self, folder):
        self.folder = folder

    def get_site_config_dir(self):
        return str(self.folder / "local")

    def get_app_dir(self, job):
        return str(self.folder / job)


class Context:
    """What the filters read of an FLContext."""

    def __init__(self, folder, task="train", name="site-1"):
        self._folder, self.task, self._name = folder, task, name

    def get_job_id(self):
        return "job"

    def get_workspace(self):
        return Workspace(self._folder)

    def get_identity_name(self):
        return self._name

    def get_prop(self, key):
        return self.task if key == "__task_name__" else None


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDCIPHER_ALLOW_EPHEMERAL_STATE", "1")
    monkeypatch.setattr(site_module, "_sites", {})
    monkeypatch.setattr(filters, "is_log_streaming_allowed", lambda fl_ctx: False)
    codec = fedcipher.Codec(bits=16, clip=8.0)
    made = fedcipher.scheme("bfv", clients=CLIENTS, codec=codec)
    keys.save(made.keygen(CLIENTS), made, tmp_path / "keys")
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "fedcipher.json").write_text(f'{{"fedcipher-key": "{tmp_path}/keys/client-0.key"}}')
    return tmp_path


class Captured:
    """Tasks that keep the first message."""

    def __init__(self):
        self.raw = None

    def start(self, site, task, raw, seconds, received):
        self.raw = raw
        return site

    def ended(self, handle):
        return True

    def sites(self):
        return ["site-1", "site-2", "site-3"]

    def aborted(self):
        return False


def task_of(folder, purpose="train", settings=None):
    """The Shareable of the first task of a run."""
    options = {"out": str(folder / "run"), "evaluate_answers": ["loss"]}
    run, captured = ServerRun(setup_of(str(folder / "keys"), options)), Captured()
    run.begin(["w"], [np.zeros(50, np.float32)], 3, plan_of(run.setup, 3, None, settings or {}))
    link = JobLink(captured)
    nodes = link.nodes()
    run.begin_round(1, link)
    from fedcipher.adapters.nvflare.plan import content_of

    asked = [Message(node, purpose, content_of(settings or {})) for node in nodes]
    for message in run.ask(purpose, 1, asked):
        link.send(message, 1e12)
        break
    task = Shareable({MESSAGE: captured.raw})
    task.add_cookie("__task_id__", "7")
    return task


def result(weights=None, **more):
    """What NVFlare's Client API makes of an app's answer."""
    weights = np.full(50, SECRET, np.float32) if weights is None else weights
    return FLModelUtils.to_shareable(FLModel(params={"w": weights}, **more))


def leaves(folder, made, purpose="train"):
    """What leaves the site, after its filters have had the task and the app's ``made`` result."""
    context = Context(folder, "train" if purpose == "train" else "validate")
    DecryptTask().process(task_of(folder, purpose), context)
    return EncryptResult().process(made, context)


def assert_only_a_frame(sent):
    assert set(sent) == {MESSAGE, "__headers__"}
    assert sent["__headers__"] == {}
    content = Message.parse(sent[MESSAGE]).content
    assert REFUSED not in content
    assert [list(record) for record in content.values() if UPDATE in record] == [[UPDATE]]
    packed = fobs.dumps(sent)
    for secret in (b"4711", b"diagnosis", b"loss", np.float32(SECRET).tobytes(), np.float64(SECRET).tobytes()):
        assert secret not in packed


def test_a_task_becomes_a_plaintext_model_with_the_servers_cookie(folder):
    given = DecryptTask().process(task_of(folder, settings={"fedproxloss_mu": 0.1}), Context(folder))
    model = FLModelUtils.from_shareable(given)
    assert list(model.params) == ["w"] and model.params["w"].flags.writeable
    assert (model.current_round, model.meta["fedproxloss_mu"]) == (0, 0.1)
    assert given.get_cookie("__task_id__") == "7"
    assert MESSAGE not in given


def headed(made):
    made.set_header("note", TEXT)
    made["beside"] = TEXT
    return made


@pytest.mark.parametrize(
    "made",
    [
        lambda: result(),
        lambda: result(metrics={"loss": SECRET, TEXT: SECRET}),
        lambda: result(meta={"NUM_STEPS_CURRENT_ROUND": 4711, "note": TEXT}),
        lambda: headed(result()),
        lambda: make_reply("EXECUTION_EXCEPTION", {"reason": TEXT}),
        lambda: headed(make_reply(TEXT)),
        lambda: DXO(DataKind.METRICS, {"loss": SECRET}).to_shareable(),
        lambda: DXO(DataKind.ANALYTIC, {"loss": SECRET}).to_shareable(),
        lambda: DXO(DataKind.COLLECTION, {TEXT: DXO(DataKind.WEIGHTS, {"w": np.ones(50)})}).to_shareable(),
        lambda: DXO(DataKind.WEIGHTS, {"w": TEXT}).to_shareable(),
        lambda: DXO(DataKind.WEIGHTS, {TEXT: np.ones(50)}).to_shareable(),
        lambda: DXO(DataKind.WEIGHT_DIFF, {"w": np.full(50, SECRET)}).to_shareable(),
        lambda: Shareable({"weights": SECRET, "text": TEXT}),
        lambda: Shareable({MESSAGE: TEXT.encode()}),
        lambda: None,
    ],
)
def test_nothing_but_a_frame_leaves_whatever_the_app_returns(made, folder):
    assert_only_a_frame(leaves(folder, made()))


def test_an_evaluations_numbers_leave_in_a_frame(folder):
    assert_only_a_frame(leaves(folder, DXO(DataKind.METRICS, {"loss": SECRET}).to_shareable(), "evaluate"))


def test_the_frames_of_a_failed_and_of_a_good_result_have_one_size(folder, tmp_path_factory):
    good = leaves(folder, result())
    site_module._sites.clear()
    other = tmp_path_factory.mktemp("other")
    for name in ("keys", "local"):
        (other / name).symlink_to(folder / name)
    failed = leaves(other, make_reply("EXECUTION_EXCEPTION"))
    sizes = [len(Message.parse(sent[MESSAGE]).content["arrays"][UPDATE].data) for sent in (good, failed)]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("given", [Shareable(), result(), Shareable({MESSAGE: b"4711"}), Shareable({MESSAGE: TEXT})])
def test_a_task_of_another_controller_starts_no_app_and_gets_a_constant_refusal(given, folder):
    with pytest.raises(PlaintextError):
        DecryptTask().process(given, Context(folder))
    context = Context(folder, MESSAGE)
    DecryptTask().process(Shareable(), context)
    sent = EncryptResult().process(NoAppExecutor().execute(MESSAGE, Shareable(), context, None), context)
    assert set(sent) == {MESSAGE, "__headers__"}
    assert b"4711" not in sent[MESSAGE] and list(Message.parse(sent[MESSAGE]).content) == [REFUSED]


def test_a_training_message_in_a_task_without_app_sends_zeros(folder):
    context = Context(folder, MESSAGE)
    made = DecryptTask().process(task_of(folder), context)
    assert not [key for key in made if key != "__headers__"]
    assert_only_a_frame(EncryptResult().process(Shareable(), context))


def test_filters_of_the_site_and_of_the_job_do_not_disturb_each_other(folder):
    context, task = Context(folder), task_of(folder)
    given = DecryptTask().process(DecryptTask().process(task, context), context)
    assert FLModelUtils.from_shareable(given).params["w"].shape == (50,)
    assert_only_a_frame(EncryptResult().process(EncryptResult().process(result(), context), context))


def provisioned(folder, keys):
    """Provision NVFlare's sample project of a server and two sites, with the builder of keys. Returns the kits."""
    nvflare = Path(sys.executable).parent / "nvflare"
    subprocess.run([nvflare, "provision", "-g"], cwd=folder, check=True, capture_output=True)
    with (folder / "project.yml").open("a") as project:
        project.write(f"  - path: fedcipher.adapters.nvflare.provision.KeyBuilder\n    args: {{keys: {keys}}}\n")
    command = [nvflare, "provision", "-p", "project.yml", "-w", "made", "--force"]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return next(iter((folder / "made").glob("*/prod_00")), None), said.stdout + said.stderr


def placed(kits):
    return {str(path.relative_to(kits)) for path in kits.rglob("*.key") if path.parent.name == "fedcipher"}


def test_nvflares_provisioning_places_keys_in_the_kits(folder, tmp_path):
    keys = folder / "keys"
    kits, _ = provisioned(tmp_path, keys)
    site = "site-{}/startup/fedcipher/client.key"
    assert placed(kits) == {"server1/startup/fedcipher/server.key", site.format(1), site.format(2)}
    for number in (1, 2):
        key = kits / site.format(number)
        assert key.read_bytes() == (keys / f"client-{number - 1}.key").read_bytes()
        assert key.stat().st_mode & 0o077 == 0


def test_sites_that_make_their_own_keys_get_the_roster(folder, tmp_path):
    for path in (folder / "keys").glob("client-*.key"):
        path.unlink()
    kits, _ = provisioned(tmp_path, folder / "keys")
    assert placed(kits) == {f"{kit}/startup/fedcipher/server.key" for kit in ("server1", "site-1", "site-2")}


def test_provisioning_without_keys_says_how_to_make_them(tmp_path):
    kits, said = provisioned(tmp_path, tmp_path / "nothing")
    assert not (kits and placed(kits)) and "fedcipher keygen" in said


def test_the_controller_keeps_its_arguments_for_the_jobs_json():
    made = SecureFedAvg("keys", 3, options={"out": "run"}, optimiser=["adam", 0.1, 0.9, 0.99, 1e-3])
    assert (made.keys, made.num_rounds, made.options) == ("keys", 3, {"out": "run"})


def test_a_site_whose_logs_go_to_the_server_takes_no_task(folder, monkeypatch):
    task = task_of(folder)
    monkeypatch.setattr(filters, "is_log_streaming_allowed", lambda fl_ctx: True)
    for step in (DecryptTask(), EncryptResult()):
        with pytest.raises(PlaintextError, match="allow_log_streaming"):
            step.process(task, Context(folder))
