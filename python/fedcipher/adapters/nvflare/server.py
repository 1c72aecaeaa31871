"""The server's side: the controller that runs a federation as the workflow of an NVFlare job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedcipher.adapters.nvflare._framework import Controller, ModelLearnableKey, Shareable, Task, learnable_of
from fedcipher.adapters.nvflare.link import JobLink
from fedcipher.adapters.nvflare.plan import content_of, plan_of, setup_of
from fedcipher.adapters.nvflare.site import MESSAGE
from fedcipher.errors import FedcipherError
from fedcipher.federation.charter import Purpose
from fedcipher.federation.messages import Message, Reply
from fedcipher.federation.server.run import ServerRun

__all__ = ["SecureFedAvg"]


class _JobTasks:
    """The `fedcipher.adapters.nvflare.link.Tasks` of a controller's job."""

    def __init__(self, controller: Any, abort_signal: Any, fl_ctx: Any) -> None:
        self._controller, self._abort_signal, self._fl_ctx = controller, abort_signal, fl_ctx

    def start(self, site: str, task: str, raw: bytes | None, seconds: int, received: Callable[[object], None]) -> Any:
        def callback(client_task: Any, fl_ctx: Any) -> None:
            result, client_task.result = client_task.result, None
            received(result.get(MESSAGE))

        data = Shareable({} if raw is None else {MESSAGE: raw})
        handle = Task(name=task, data=data, timeout=seconds, result_received_cb=callback)
        self._controller.send(handle, self._fl_ctx, targets=[site])
        return handle

    def ended(self, handle: Any) -> bool:
        return handle.completion_status is not None

    def sites(self) -> Iterable[str]:
        names = [client.name for client in self._fl_ctx.get_engine().get_clients()]
        return [name for name in names if self._controller.get_client_disconnect_time(name) is None]

    def aborted(self) -> bool:
        return bool(self._abort_signal.triggered)


class SecureFedAvg(Controller):
    """Runs a federation of Fedcipher as the workflow of an NVFlare job. The server sees no update.

    Parameters
    ----------
    keys
        ``server.key``, or the folder that holds it, on the server.
    persistor_id
        The component that has the first model, a ``ModelPersistor`` of NVFlare. With ``opener``, it also saves the
        model after each round.
    options
        The options of `fedcipher.federation.server.setup.RunSetup` by name, as JSON has them. An answer is a name, or
        a list of the arguments of `fedcipher.federation.answers.Answer`.
    optimiser
        ``["adam", eta, beta_1, beta_2, tau]``, or another kind of `fedcipher.federation.optimiser_step.KINDS`. The
        clients make its step from each mean.
    settings
        Settings that the app gets in its model's ``meta``, such as ``{"fedproxloss_mu": 0.1}``. The charter lists them.
    wait, timeout
        Seconds to wait for enough sites before a round, and for the replies of a round.
    """

    def __init__(
        self,
        keys: str,
        num_rounds: int,
        persistor_id: str = "persistor",
        options: Mapping[str, Any] | None = None,
        optimiser: Sequence[Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        wait: float = 300.0,
        timeout: float = 3600.0,
    ) -> None:
        super().__init__()
        self.keys, self.num_rounds, self.persistor_id = keys, num_rounds, persistor_id
        self.options, self.optimiser = dict(options or {}), None if optimiser is None else list(optimiser)
        self.settings, self.wait, self.timeout = dict(settings or {}), wait, timeout

    def start_controller(self, fl_ctx: Any) -> None:
        self._persistor: Any = fl_ctx.get_engine().get_component(self.persistor_id)

    def stop_controller(self, fl_ctx: Any) -> None:
        """End the tasks that are still open."""
        self.cancel_all_tasks(fl_ctx=fl_ctx)

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run all rounds. An error of the run ends the job with the error's text."""
        try:
            self._run(abort_signal, fl_ctx)
        except FedcipherError as error:
            self.system_panic(f"Fedcipher: {error}", fl_ctx)

    def _run(self, abort_signal: Any, fl_ctx: Any) -> None:
        run = ServerRun(setup_of(self.keys, self.options), show=partial(self.log_info, fl_ctx))
        run.timeout = self.timeout
        self.log_info(fl_ctx, f"Fedcipher: {run.setup.summary()}")
        link = JobLink(_JobTasks(self, abort_signal, fl_ctx))
        learnable = self._persistor.load_model(fl_ctx)
        weights: dict[str, Any] = {str(k): np.asarray(v) for k, v in learnable[ModelLearnableKey.WEIGHTS].items()}
        plan = plan_of(run.setup, self.num_rounds, self.optimiser, self.settings)
        run.begin(list(weights), list(weights.values()), self.num_rounds, plan)
        before = len(run.rounds)
        run.warn_of_budget(self.num_rounds)
        try:
            for index in range(run.done + 1, self.num_rounds + 1):
                self._round(run, index, link)
                if run.setup.opener is not None:
                    made = learnable_of(weights=run.model.by_name(run.model.arrays), meta_props={})
                    self._persistor.save_model(made, fl_ctx)
        finally:
            run.close()
        run.check_some_finished(self.num_rounds, before)
        for line in () if run.setup.opener is not None else run.where_the_model_is():
            self.log_info(fl_ctx, f"Fedcipher: {line}")
        run.check_lost()

    def _round(self, run: ServerRun, index: int, link: JobLink) -> None:
        nodes = link.wait_for(run.setup.minimum, self.wait)
        run.begin_round(index, link)
        run.accept_train(self._asked(run, "train", index, link, nodes))
        run.end_training(None)
        if run.setup.answers["evaluate"]:
            run.accept_evaluate(self._asked(run, "evaluate", index, link, nodes))
            run.end_evaluation(None)
        run.call_on_round()

    def _asked(self, run: ServerRun, purpose: Purpose, index: int, link: JobLink, nodes: list[int]) -> Iterable[Reply]:
        asked = [Message(node, run.charter.types[purpose], content_of(self.settings)) for node in nodes]
        return run.gather(partial(link.exchange, run.ask(purpose, index, asked)), run.timeout)
