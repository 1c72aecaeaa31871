"""One suite for all adapters. A driver is one subclass of `Adapter`, and one line of `conformance.drivers`.

`tests/adapters/test_conformance.py` has the properties, each written once. A driver carries the messages of a run
through its adapter's own two sides, and calls the app of a test. Between the two sides is a `Wire`, where a test reads,
alters and loses messages, whatever form the framework gives them.
"""

import threading
from typing import ClassVar

import fedcipher
import numpy as np
from fedcipher import keys
from fedcipher.federation.messages import COMMITTEE, CONFIG, CONSENT, REFUSED, REPORT, Message
from fedcipher.federation.refusal import reference_of
from fedcipher.federation.round_settings import RoundSettings
from fedcipher.federation.server.run_folder import open_run

CLIENTS = 3
CLIP, BITS = 2.0, 16
EXAMPLES = "num-examples"


class Cohort:
    """Keys of one scheme for `CLIENTS` clients, and of one more party that may open sums.

    With ``largest``, clients weigh what their examples are, up to this number.
    """

    def __init__(self, folder, scheme, *, largest=0, **params):
        codec = fedcipher.Codec(bits=BITS, clip=CLIP)
        self.scheme = fedcipher.scheme(scheme, clients=CLIENTS, codec=codec, max_weight=max(largest, 1), **params)
        self.parties = CLIENTS + (self.scheme.committee is None)
        unit = {"examples_per_weight": 1.0} if largest else {}
        self.folder = keys.save(self.scheme.keygen(self.parties), self.scheme, folder / "keys", **unit)
        self.largest = largest
        self.out = folder / "run"

    def key(self, client):
        return self.folder / f"client-{client}.key"

    @property
    def opener(self):
        """The key of the party that is no client; None if the scheme has none, or its server opens sums without."""
        return None if self.scheme.committee is not None else self.key(CLIENTS)

    def opened(self):
        """The run's model, as a client opens it."""
        return open_run(self.out, self.key(0))

    def precision(self, rounds, weights=(1,) * CLIENTS):
        """The farthest that a value in [-1, 1] is from the mean in the clear after ``rounds`` of apps that halve it.

        Each client's change is rounded to the nearest step of its range, so that it is off by half a step. The change
        is first scaled by the client's share of the largest weight, by which the sum is divided again. A round whose
        apps go half the way to a goal also halves what earlier rounds were off.
        """
        half_step = CLIP / self.scheme.levels.of(BITS)
        shares = np.asarray(weights) / max(self.largest, 1)
        # Model and change are float32, each within 2 of zero.
        floats = 4 * float(np.finfo(np.float32).eps)
        return (2 - 2.0 ** (1 - rounds)) * (half_step * len(shares) / float(shares.sum()) + floats)


class Wire:
    """Where messages pass: ``down`` and ``up`` are a test's, and ``left`` is all that has left clients.

    ``down(adapter, client, message)`` returns the message that the client gets. ``up(adapter, client, message, reply)``
    returns the reply that the server gets; None loses it.
    """

    def __init__(self, down=None, up=None):
        self._down = down or (lambda adapter, client, message: message)
        self._up = up or (lambda adapter, client, message, reply: reply)
        self.left, self.errors = [], []

    def down(self, adapter, client, message):
        return self._kept(self._down, adapter, client, message)

    def up(self, adapter, client, message, reply):
        self.left.append((client, message, reply))
        return self._kept(self._up, adapter, client, message, Message.parse(reply.to_bytes()))

    def _kept(self, hook, *arguments):
        try:
            return hook(*arguments)
        except BaseException as error:
            # Raised after the run, because an adapter would make a reply of it, or wait for one.
            self.errors.append(error)
            return arguments[-1]


class Adapter:
    """An adapter under test, with `CLIENTS` clients in a process.

    ``app(client, purpose, arrays)`` takes and gives arrays by name, and gives metrics; ``purpose`` is "train" or
    "evaluate". A driver has `serve` and `tell`, and calls `app` and `carry`.
    """

    name = ""
    server_of = ""
    """The driver whose server side this one shares; empty if it has its own."""
    params: ClassVar = {}
    """Parameters of keys that the framework needs, by scheme."""
    cannot: ClassVar = {}
    """What the framework cannot do: the property's name, and the page and words that say so to users."""

    def __init__(self, cohort, app, wire=None):
        self.cohort, self.wire = cohort, wire or Wire()
        self._app, self._lock, self.called = app, threading.Lock(), []

    # --- a driver has these ------------------------------------------------------------------

    def serve(self, model, rounds, **options):
        """Run all ``rounds`` with the adapter's own server, from ``model``. Returns the `ServerRun`, also in `run`.

        ``options`` are those of `RunSetup`. Each round has a training and an evaluation.
        """
        raise NotImplementedError

    def tell(self, client, message):
        """Give the adapter's client this message, and return its reply, with `REFUSED` in it where it refuses."""
        raise NotImplementedError

    def tell_bytes(self, client, raw):
        """Like `tell`, with any bytes. Returns None if the framework carries records and no bytes."""
        return None

    def restart(self, client):
        """The client ends between two messages, and begins again with what it has on disk."""
        raise NotImplementedError

    def close(self):
        """End what the driver has started."""

    # --- a driver calls these ----------------------------------------------------------------

    def app(self, client, purpose, arrays):
        """The test's app."""
        with self._lock:
            self.called.append((client, purpose, {name: np.array(values) for name, values in arrays.items()}))
        return self._app(client, purpose, arrays)

    def carry(self, client, message):
        """The reply to a message of the server, past the wire; None if it is lost."""
        given = self.wire.down(self, client, message)
        return self.wire.up(self, client, message, self.tell(client, given))

    # --- a test calls these ------------------------------------------------------------------

    def run_rounds(self, model, rounds, **options):
        """Like `serve`, with an answer in each evaluation. Raises what a hook has raised."""
        given = {"out": self.cohort.out, "evaluate_answers": ["loss"], "deadline": 60.0, **options}
        try:
            return self.serve(model, rounds, **given)
        finally:
            if self.wire.errors:
                raise self.wire.errors[0]


# --- messages ----------------------------------------------------------------------------------


def settings_in(message):
    """The round's settings; None in a message that asks no app."""
    plain = CONFIG in message.content and not {REPORT, COMMITTEE, CONSENT} & set(message.content)
    return RoundSettings.parse(message.content[CONFIG]) if plain else None


def asks(message, purpose, index):
    """Whether the message asks an app for this ``purpose`` in round ``index``."""
    settings = settings_in(message)
    return settings is not None and message.type.partition(".")[0] == purpose and settings.index == index


def copied(message):
    """A message that a test may change."""
    return Message(message.node, message.type, Message.parse(message.to_bytes()).content)


def is_constant_refusal(reply):
    """Whether the reply has the one text of refusals and nothing else."""
    if list(reply.content) != [REFUSED] or list(reply.content[REFUSED]) != ["text"]:
        return False
    return reference_of(reply.content[REFUSED]["text"]) is not None
