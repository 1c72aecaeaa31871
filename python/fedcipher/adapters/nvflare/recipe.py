"""A recipe: an NVFlare job with encrypted updates, in the lines of NVFlare's own recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedcipher._optional import load
from fedcipher.adapters.nvflare.filters import DecryptTask, EncryptResult, NoAppExecutor
from fedcipher.adapters.nvflare.link import APP_TASKS
from fedcipher.adapters.nvflare.plan import check_options
from fedcipher.adapters.nvflare.server import SecureFedAvg
from fedcipher.adapters.nvflare.site import MESSAGE
from fedcipher.federation.server.setup import RunOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["SecureFedAvgRecipe"]


# Not in `_framework`: this module of NVFlare takes options from the command line of the process that imports it.
_Recipe: Any = load("nvflare.recipe.spec").Recipe
_job: Any = load("nvflare.job_config.api")
_defs: Any = load("nvflare.job_config.defs")
_script: Any = load("nvflare.job_config.script_runner")


class SecureFedAvgRecipe(_Recipe):
    """Federated averaging of encrypted updates. The training script stays as it is.

    ``model`` is the first model as a list of numbers, for NVFlare's ``NPModelPersistor``; ``persistor`` is another
    ``ModelPersistor`` in its place. NVFlare ends the job if fewer than ``min_clients`` sites are left.
    ``framework`` and ``params_transfer_type`` are those of NVFlare's ``ScriptRunner``. ``options`` are those of
    `fedcipher.federation.server.setup.RunSetup`, as JSON has them, such as ``out="run"``. All other parameters are
    those of `fedcipher.adapters.nvflare.server.SecureFedAvg`. Raises `StrategyError` for unknown options.
    """

    def __init__(
        self,
        *,
        name: str,
        keys: str,
        train_script: str,
        train_args: str = "",
        min_clients: int,
        num_rounds: int,
        model: Sequence[Any] | None = None,
        persistor: Any = None,
        optimiser: Sequence[Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        framework: str = "numpy",
        params_transfer_type: str = "FULL",
        **options: Unpack[RunOptions],
    ) -> None:
        check_options(options)
        job = _job.FedJob(name=name, min_clients=min_clients)
        # Every machine has Fedcipher installed, so the job does not carry the package's code.
        job.set_app_packages(["fedcipher"])
        if persistor is None:
            persistor = load("nvflare.app_common.np.np_model_persistor").NPModelPersistor(model=model)
        job.to_server(persistor, id="persistor")
        job.to_server(SecureFedAvg(keys, num_rounds, "persistor", dict(options), optimiser, settings))
        script = _script.ScriptRunner(
            script=train_script,
            script_args=train_args,
            framework=_script.FrameworkType(framework),
            params_transfer_type=_script.TransferType(params_transfer_type),
        )
        job.to_clients(script, tasks=APP_TASKS)
        job.to_clients(NoAppExecutor(), tasks=[MESSAGE])
        # One filter for each task: NVFlare writes the tasks of one filter in a random order; `app_digest` would differ.
        for task in (*APP_TASKS, MESSAGE):
            job.to_clients(DecryptTask(), filter_type=_defs.FilterType.TASK_DATA, tasks=[task])
            job.to_clients(EncryptResult(), filter_type=_defs.FilterType.TASK_RESULT, tasks=[task])
        super().__init__(job)
