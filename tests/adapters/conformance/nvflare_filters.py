"""NVFlare's adapter with NVFlare: its filters around the app, and its controller as the server of the job."""

import json
import threading
from types import SimpleNamespace

import numpy as np
from fedcipher.adapters.nvflare import site as site_module
from fedcipher.adapters.nvflare.filters import DecryptTask, EncryptResult, NoAppExecutor
from fedcipher.adapters.nvflare.server import SecureFedAvg
from fedcipher.adapters.nvflare.site import MESSAGE
from fedcipher.errors import PlaintextError, StrategyError
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from conformance import EXAMPLES
from conformance.nvflare import SITES, Tasks


class Filters(Tasks):
    """The filters with NVFlare's Shareables, and `SecureFedAvg` with tasks that are threads."""

    name = "nvflare-filters"

    def restart(self, client):
        folder = self._folder(client)
        for part in ("local", "startup"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "local" / "resources.json").write_text('{"allow_log_streaming": false}')
        settings = {"fedcipher-key": str(self.cohort.key(client))}
        (folder / "local" / "fedcipher.json").write_text(json.dumps(settings))
        site_module._sites.pop((str(self.cohort.folder), SITES[client]), None)

    def _folder(self, client):
        return self.cohort.folder.parent / SITES[client]

    def execute(self, client, task, raw):
        context = _Context(str(self.cohort.folder), self._folder(client), SITES[client], task)
        given = Shareable() if raw is None else Shareable({MESSAGE: raw})
        try:
            shown = DecryptTask().process(given, context)
        except PlaintextError:
            # NVFlare answers with a return code.
            return None
        made = (
            NoAppExecutor().execute(task, shown, context, None)
            if task == MESSAGE
            else self._result(client, task, shown)
        )
        sent = EncryptResult().process(made, context)
        if set(sent) != {MESSAGE, "__headers__"} or sent["__headers__"]:
            self.wire.errors.append(AssertionError(f"beside the message there leave {sorted(sent)}"))
        return sent[MESSAGE]

    def _result(self, client, task, shown):
        model = FLModelUtils.from_shareable(shown)
        try:
            arrays, metrics = self.app(client, {"train": "train", "validate": "evaluate"}[task], model.params)
            steps = {name: metrics.pop(name) for name in [EXAMPLES] if name in metrics}
            meta = {"NUM_STEPS_CURRENT_ROUND": steps[EXAMPLES]} if steps else {}
            if task == "train":
                return FLModelUtils.to_shareable(FLModel(params=arrays, metrics=metrics, meta=meta))
            return FLModelUtils.to_shareable(FLModel(metrics=metrics, meta=meta))
        except Exception as error:
            return make_reply("EXECUTION_EXCEPTION", {"reason": str(error)})

    def serve(self, model, rounds, **options):
        controller = _Controller(self, model, str(self.cohort.folder), rounds, options=options, wait=30.0)
        controller.start_controller(controller.context)
        controller.control_flow(SimpleNamespace(triggered=False), controller.context)
        return self.run


class _Context:
    """What the filters read of an FLContext."""

    def __init__(self, job, folder, name, task):
        self._job, self._folder, self._name, self._task = job, folder, name, task

    def get_job_id(self):
        return self._job

    def get_identity_name(self, default=""):
        return self._name

    def get_workspace(self):
        folder = self._folder
        return SimpleNamespace(
            get_site_config_dir=lambda: str(folder / "local"), get_app_dir=lambda job: str(folder / "app")
        )

    def get_prop(self, key):
        return {"__task_name__": self._task, FLContextKey.WORKSPACE_ROOT: str(self._folder)}.get(key)


class _Controller(SecureFedAvg):
    """The controller of a job whose engine is this process."""

    def __init__(self, driver, model, *arguments, **named):
        super().__init__(*arguments, **named)
        self._driver, self._handles = driver, {}
        learnable = make_model_learnable({name: np.array(x) for name, x in model.items()}, {})
        persistor = SimpleNamespace(load_model=lambda context: learnable, save_model=lambda made, context: None)
        engine = SimpleNamespace(
            get_component=lambda name: persistor, get_clients=lambda: [SimpleNamespace(name=name) for name in SITES]
        )
        self.context = SimpleNamespace(get_engine=lambda: engine)

    def _round(self, run, index, link):
        self._driver.run = run
        super()._round(run, index, link)

    def send(self, task, fl_ctx, targets):
        (site,) = targets
        raw = task.data.get(MESSAGE)

        def received(found):
            result = Shareable() if found is None else Shareable({MESSAGE: found})
            task.result_received_cb(SimpleNamespace(result=result), fl_ctx)

        def lost():
            task.completion_status = "TIMEOUT"

        work = (lost, SITES.index(site), task.name, raw, received)
        threading.Thread(target=self._driver.work, args=work, daemon=True).start()

    def get_client_disconnect_time(self, client_name):
        return None

    def log_info(self, fl_ctx, msg, **_):
        pass

    def system_panic(self, reason, fl_ctx):
        raise StrategyError(reason)
