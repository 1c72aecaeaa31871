"""Flower's adapter: `SecureStrategy` over a grid, and clients with the mod, of today's API or of the older one."""

import threading
from importlib import import_module

import numpy as np
from fedcipher.federation.messages import REFUSED, Config, Message, Reply

from conformance import CLIENTS, EXAMPLES, Adapter


class Mod(Adapter):
    """A ClientApp with `client_mod`."""

    name = "flower-mod"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        # Gives this process the task that Flower's messages name.
        import_module("flower_harness")
        self._contexts, self._apps = {}, {}
        for client in range(CLIENTS):
            self.restart(client)

    def restart(self, client):
        from flwr.app import Context, RecordDict

        settings = {"partition-id": client, "fedcipher-key": str(self.cohort.key(client))}
        self._contexts[client] = Context(1, 1000 + client, settings, RecordDict(), {})
        self._apps[client] = self.client_app(client)

    def client_app(self, client):
        from fedcipher.adapters.flower import client_mod

        return self.plain_app(client, client_mod)

    def plain_app(self, client, *mods):
        """A ClientApp of the test's app, behind ``mods``."""
        from fedcipher.adapters.flower.records import model_record
        from flwr.app import Message as FlowerMessage
        from flwr.app import MetricRecord, RecordDict
        from flwr.clientapp import ClientApp

        made = ClientApp(mods=list(mods))

        def answer(message, purpose):
            ((place, record),) = message.content.array_records.items()
            arrays = {name: np.asarray(array.numpy()) for name, array in record.items()}
            trained, metrics = self.app(client, purpose, arrays)
            content = {"metrics": MetricRecord(metrics)}
            if purpose == "train":
                content[place] = model_record(trained)
            return FlowerMessage(RecordDict(content), reply_to=message)

        for named in ((), ("other",)):
            # An app may have functions that no charter names.
            made.train(*named)(lambda message, context: answer(message, "train"))
        made.evaluate()(lambda message, context: answer(message, "evaluate"))
        return made

    # --- messages ----------------------------------------------------------------------------

    def tell(self, client, message):
        return federations(self.answer(client, flowers(message, 1000 + client)), message.type)

    def answer(self, client, message):
        """The client's reply to a message of Flower."""
        return self._apps[client](message, self._contexts[client])

    def serve(self, model, rounds, **options):
        from fedcipher.adapters.flower import SecureStrategy
        from fedcipher.adapters.flower.records import model_record
        from flwr.serverapp.strategy import FedAvg

        everybody = dict.fromkeys(("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"), CLIENTS)
        strategy = SecureStrategy(FedAvg(**everybody), self.cohort.folder, **options)
        self.run = strategy.run
        strategy.start(self.grid(), model_record(model), num_rounds=rounds)
        return strategy.run

    def grid(self):
        """A grid whose nodes are the clients."""
        return _Grid(self)


class _Grid:
    """Flower's grid. Clients answer at the same time, and a lost reply never comes."""

    def __init__(self, driver):
        self.run_config = {}
        self._driver, self._sent, self._replies = driver, 0, {}

    def get_node_ids(self):
        return [1000 + client for client in range(CLIENTS)]

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def _push(self, message):
        self._sent += 1
        name = f"message-{self._sent}"
        threading.Thread(target=self._answer, args=(name, message), daemon=True).start()
        return name

    def _answer(self, name, message):
        from fedcipher.adapters.flower.records import message_of

        node = message.metadata.dst_node_id
        reply = self._driver.carry(node - 1000, message_of(message, node))
        if reply is not None:
            made = flowers_reply(reply, message)
            made.metadata.__dict__.update(_reply_to_message_id=name, _src_node_id=node)
            self._replies[name] = made

    def pull_messages(self, message_ids):
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]


class Older(Mod):
    """A NumPyClient, by `numpy_client_app`."""

    name = "flower-older"
    server_of = "flower-mod"

    def client_app(self, client):
        from fedcipher.adapters.flower.legacy import numpy_client_app
        from flwr.client import NumPyClient

        driver = self

        class Client(NumPyClient):
            def fit(self, parameters, config):
                trained, metrics = driver.app(client, "train", driver.by_name(parameters))
                return list(trained.values()), metrics.pop(EXAMPLES), metrics

            def evaluate(self, parameters, config):
                _, metrics = driver.app(client, "evaluate", driver.by_name(parameters))
                return metrics.pop("loss"), metrics.pop(EXAMPLES), metrics

        made = numpy_client_app(lambda context: Client())
        made.train("other")(lambda message, context: self.app(client, "train", {}))
        return made

    def serve(self, model, rounds, **options):
        self._names = list(model)
        return super().serve(model, rounds, **options)

    def by_name(self, parameters):
        return dict(zip(self._names, parameters, strict=True))


def flowers(message, node):
    """The federation's message as one of Flower."""
    from fedcipher.adapters.flower.records import record_dict
    from flwr.app import Message as FlowerMessage

    return FlowerMessage(record_dict(message.content), dst_node_id=node, message_type=message.type)


def federations(reply, message_type):
    """Flower's reply as one of the federation, whose refusals have a record."""
    from fedcipher.adapters.flower.records import content_of, reply_of
    from fedcipher.federation.refusal import TEXT
    from flower_harness import reference_of

    if not reply.has_error():
        in_arrays = reference_of(reply)
        if in_arrays is not None:
            return Message(0, message_type, {REFUSED: Config({"text": f"{TEXT}{in_arrays}"})})
        return Message(0, message_type, content_of(reply.content))
    found: Reply = reply_of(reply, 0)
    return Message(0, message_type, {REFUSED: Config({"text": found.error})})


def flowers_reply(reply, message):
    """The federation's reply as Flower's, to ``message``."""
    from fedcipher.adapters.flower.records import record_dict
    from fedcipher.federation.refusal import CODE
    from flwr.app import Error
    from flwr.app import Message as FlowerMessage

    if REFUSED in reply.content:
        return FlowerMessage(Error(code=CODE, reason=reply.content[REFUSED]["text"]), reply_to=message)
    return FlowerMessage(record_dict(reply.content), reply_to=message)
