"""The protection of a site: a filter for a task's data, one for its result, an executor for tasks without an app."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedcipher.adapters.nvflare._framework import (
    DataKind,
    Executor,
    Filter,
    FLModel,
    FLModelUtils,
    MetaKey,
    ReturnCode,
    Shareable,
    dxo_of,
    is_log_streaming_allowed,
)
from fedcipher.adapters.nvflare.site import MESSAGE, Site, site_of
from fedcipher.errors import LayoutError, PlaintextError
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.session import Work
from fedcipher.federation.messages import CONFIG, Arrays, Config, Content, Message, Metrics, named

__all__ = ["EXAMPLES", "DecryptTask", "EncryptResult", "NoAppExecutor"]

EXAMPLES = "num-examples"
"""The metric that weights a client: ``NUM_STEPS_CURRENT_ROUND`` in an FLModel's meta; 1 if the app gives none."""
_TASK_NAME = "__task_name__"


def _site(fl_ctx: Any) -> Site:
    """This site in this job. Raises `PlaintextError` if its logs, which can quote data, go to the server."""
    if is_log_streaming_allowed(fl_ctx):
        raise PlaintextError(
            "NVFlare sends the logs of this site's jobs to the server, and an app's error can quote data: write "
            '"allow_log_streaming": false into local/resources.json, and start the site again'
        )
    job, workspace = fl_ctx.get_job_id(), fl_ctx.get_workspace()
    local, app = Path(workspace.get_site_config_dir()), Path(workspace.get_app_dir(job))
    return site_of(str(job), str(fl_ctx.get_identity_name()), local, app)


class DecryptTask(Filter):
    """Turns a message of Fedcipher's server into a plaintext model for the app, and refuses every other task.

    Use it for the data of all tasks (``"*"``) together with `EncryptResult`, in the job or in a scope of the site.
    """

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """The model as a Shareable. Raises `PlaintextError` if the task needs no app: its reply is then waiting.

        NVFlare answers such a task with a return code, and the server asks for the reply by a task that needs no app.
        """
        site = _site(fl_ctx)
        if shareable is site.passed:
            # Another filter of this class comes before this one, in the site's scope.
            return shareable
        raw, needs_no_app = shareable.get(MESSAGE), fl_ctx.get_prop(_TASK_NAME) == MESSAGE
        work = None if needs_no_app and raw is None else site.open(raw)
        if work is None and not needs_no_app:
            raise PlaintextError("this task needs no app, or it is refused: the reply waits for the server to ask")
        site.passed = Shareable() if work is None or needs_no_app else _model_of(work, site.message)
        # The server's own name of the task, which NVFlare's client returns with the result.
        site.passed.set_cookie_jar(shareable.get_cookie_jar())
        return site.passed


class EncryptResult(Filter):
    """Turns the app's result into one frame. Nothing else of the result leaves: no header, metric, text or array."""

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """A new Shareable with the reply's bytes and nothing else."""
        site = _site(fl_ctx)
        if shareable is not site.passed or MESSAGE not in shareable:
            work = site.work
            site.passed = Shareable({MESSAGE: site.reply(None if work is None else _result_of(shareable, work))})
        return site.passed


class NoAppExecutor(Executor):
    """Executes the tasks that need no app, such as those of a committee's members: the filters have the reply."""

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """An empty result, which `EncryptResult` replaces."""
        return Shareable()


def _model_of(work: Work, message: Message) -> Any:
    """The app's view of a message: a model of NVFlare, with the run's settings as its meta."""
    settings = [record for name, record in message.content.items() if isinstance(record, Config) and name != CONFIG]
    meta = {key: value for record in settings for key, value in record.items()}
    index = cast("dict[str, Any]", message.content[CONFIG])["index"]
    # A copy, because an app may train in place.
    params = {name: np.array(values) for name, values in work.model.items()}
    # NVFlare counts rounds from 0.
    model = FLModel(params_type="FULL", params=params, current_round=index - 1, meta=meta)
    return FLModelUtils.to_shareable(model)


def _result_of(shareable: Any, work: Work) -> AppResult:
    """The app's result in ``shareable``. Whatever it is, it is accepted, even as a failure."""
    try:
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return AppResult(failed=f"the app answered with the return code {code}")
        dxo = dxo_of(shareable)
        metrics = _metrics_of(dxo)
        if not work.updates:
            return AppResult(metrics=metrics)
        content: Content = {"arrays": _arrays_of(dxo, work), "metrics": Metrics(metrics)}
        return AppResult.of(content, work.names, work.arrays, updates=True, seconds=0.0)
    except Exception as error:
        return AppResult.raised(error)


def _metrics_of(dxo: Any) -> dict[str, Any]:
    given = dxo.data if dxo.data_kind == DataKind.METRICS else dxo.meta.get(MetaKey.INITIAL_METRICS)
    metrics = {str(key): value for key, value in dict(given or {}).items()}
    metrics[EXAMPLES] = dxo.meta.get(MetaKey.NUM_STEPS_CURRENT_ROUND, 1)
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in metrics.items()}


def _arrays_of(dxo: Any, work: Work) -> Arrays:
    """The whole model of a result, also if the app returned a difference. Raises `LayoutError`."""
    if dxo.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF) or not isinstance(dxo.data, Mapping):
        raise LayoutError(f"the app returned data of the kind {dxo.data_kind!r}; return a model, or a difference")
    given = cast("Mapping[str, Any]", dxo.data)
    arrays = {str(name): np.asarray(values) for name, values in given.items()}
    if any(values.dtype.kind not in "biuf" for values in arrays.values()):
        raise LayoutError('an array of the app is not a NumPy array of numbers; use server_expected_format="numpy"')
    if dxo.data_kind == DataKind.WEIGHT_DIFF:
        model = work.model
        if sorted(arrays) != sorted(model):
            raise LayoutError(f"the difference has the arrays {sorted(arrays)}, expected {sorted(model)}")
        arrays = {name: np.asarray(model[name] + values) for name, values in arrays.items()}
    return named(list(arrays), list(arrays.values()))
