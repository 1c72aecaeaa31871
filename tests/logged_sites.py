"""Sites in this process that keep logs, and the `Link` of a run to them."""

import fedcipher
import numpy as np
from fedcipher import keys
from fedcipher.federation.app_inputs import digest_of_context
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.session import ClientSession, Work
from fedcipher.federation.messages import Message
from fedcipher.federation.refusal import refused
from fedcipher.federation.server.link import reply_from
from fedcipher.federation.server.run import ServerRun
from fedcipher.federation.server.setup import RunSetup
from fedcipher.guard.log import logged_holder

CLIENTS = 4


class Site:
    """A client with its key and its log. ``answers`` are the rounds that it answers; all if None."""

    def __init__(self, key, logs, answers=None):
        own = {"fedcipher-key": str(key), "fedcipher-log": str(logs)}
        self.session = ClientSession(lambda: logged_holder(own, {}), lambda: digest_of_context({}, "x"))
        self.answers, self.sent = answers, []

    @property
    def log(self):
        return self.session.recorder

    def answer(self, message):
        try:
            opened = self.session.open(message)
            if isinstance(opened, Work):
                with opened as work:
                    made = [np.asarray(x + 1) for x in work.arrays]
                    opened = self.session.seal(message, work, AppResult(made, {"num-examples": 3, "accuracy": 0.5}))
            self.sent.append(opened)
            return opened
        except Exception as error:
            return refused(message, error, self.session.recorder)


class Sites:
    """The `Link` of sites in this process. ``alter`` may change a message on its way: (node, message) -> message."""

    def __init__(self, sites):
        self.sites, self.asked, self.alter = sites, [], lambda node, message: message

    def nodes(self):
        return [node for node, site in enumerate(self.sites) if site is not None]

    def exchange(self, messages, *, until, enough=None, grace=None):
        return _Exchange(self, list(messages))

    def late(self, names, until):
        return iter(())


class _Exchange:
    def __init__(self, link, messages):
        self._link, self._messages = link, messages
        self.asked, self.waiting = [message.node for message in messages], {}

    def __iter__(self):
        for message in self._messages:
            sent = self._link.alter(message.node, Message.parse(message.to_bytes()))
            self._link.asked.append(sent)
            reply = self._link.sites[message.node].answer(sent)
            yield reply_from(message.node, Message.parse(reply.to_bytes()))


def begun(folder, scheme="flashe", rounds=3, clients=CLIENTS, **options):
    """A run that has begun, and the link to its sites, whose logs are in ``folder / "logs"``."""
    made = fedcipher.scheme(scheme, clients=clients, **options.pop("params", {}))
    place = keys.save(made.keygen(clients), made, folder / "keys")
    sites = [Site(place / f"client-{k}.key", folder / "logs") for k in range(clients)]
    run = ServerRun(RunSetup(place, out=folder / "run", **options))
    run.begin(["a"], [np.zeros(10, np.float32)], rounds)
    return run, Sites(sites)


def logs_of(folder):
    return sorted((folder / "logs").iterdir())
