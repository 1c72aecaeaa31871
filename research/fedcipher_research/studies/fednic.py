"""FedNIC, Table 3 and Fig. 3 to Fig. 7: its CNN and two clients, without encryption, on the host and in the engine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from fedcipher import _native
from fedcipher._units import seconds, size
from fedcipher.bench.groups import Group, Limits, limited_group
from fedcipher.codec import Array
from fedcipher.data import load
from fedcipher.engine import Authority, connect
from fedcipher.engine.local import start_engines
from fedcipher.schemes import Scheme

from fedcipher_research._optional import require
from fedcipher_research.published import setup
from fedcipher_research.studies.fednic_beside import Round, Spent, compared
from fedcipher_research.studies.findings import Findings, StudySettings, Table
from fedcipher_research.studies.netns import Exchange, wan
from fedcipher_research.studies.sidecar import made, sidecar
from fedcipher_research.studies.timing import best, clocked, ledgers

__all__ = ["run"]

_PAPER = "fednic"
_MODEL, _CLASSES = "cnn-1.2m", 62
# Paillier is measured on this many ciphertexts, because all ciphertexts cost the same.
_SAMPLE = 64
_HOST = ("ckks", "bfv", "flashe")
_ENGINE = ("bfv", "flashe")
# The limits of the host's and of the SmartNIC's control group.
_EACH = Limits(cpus=1.0)


_T = TypeVar("_T")


class _Encrypts(Protocol):
    """An encryptor: of this process, of an engine or of a sidecar."""

    def encrypt(self, update: Sequence[Array], *, round: int) -> bytes: ...


class _Opens(Protocol):
    """A decryptor: of this process, of an engine or of a sidecar."""

    def open(self, frame: bytes) -> object: ...


def run(settings: StudySettings) -> Findings:
    """Train, and measure every way to send the update. Raises `BenchError` without namespaces and control groups."""
    require("fedcipher-research bench fednic", "tenseal", "phe", "gmpy2")
    given = setup(_PAPER)
    clients = int(given["clients"])
    found = Findings(
        f"The CNN of FedNIC with {clients} clients: plain, encrypted on the host, encrypted in the engine",
        [],
        [
            "FEMNIST was not at hand: images of MNIST, a model of 62 classes as there",
            "one round is timed, and each of its parts as often as is said below; 50 rounds there",
            "the engine is a process of the same machine, over a Unix socket; a SmartNIC there",
            f"the host and the engine have {_EACH} each, by control groups' quotas: these say how fast processor time "
            "can be used, not how much, and processor time is what is measured",
            "CKKS by TenSEAL stands for Palisade, whose scheme and parameters the paper does not give: Palisade is not "
            "kept any more, and OpenFHE, which took its place, has wheels for other versions of Python than this "
            "machine's",
            "the engine has no library schemes: CKKS in the engine is a process of Python with the keys in the "
            "engine's place, without its defences",
            "plain is float32 here; there every weight is a Python object",
            f"the network: {settings.link}; its speed is not given there, and the faster it is, the more weighs the "
            "hop",
        ],
    )
    rounds: dict[str, Round] = {}
    with ExitStack() as stack:
        stack.enter_context(ledgers())
        # The network starts before the groups, so its processes are in neither of them.
        net = stack.enter_context(wan([settings.link] * clients))
        host, apart = (stack.enter_context(limited_group(_EACH, name)) for name in ("host", "engine"))
        stack.enter_context(host.around())
        here = _Here(settings, given, clients, host, apart)
        measured = {"plain": here.plain()}
        for name in _HOST:
            measured[f"{name} on the host"] = here.host(name)
        measured["ckks in the engine"] = here.sidecar("ckks", measured["ckks on the host"])
        for name in _ENGINE:
            measured[f"{name} in the engine"] = here.engine(name, measured[f"{name} on the host"])
        for name, one in measured.items():
            moved = [net.exchange(Exchange(one.up, one.down)) for _ in range(settings.runs)]
            network = min(max(m["up"].values()) + max(m["down"].values()) for m in moved)
            rounds[name] = replace(one, network=network)
            found.figures[name] = asdict(rounds[name])
            settings.say(f"{name}: {seconds(rounds[name].workflow)} a round")
        paillier = here.paillier()
    found.figures["paillier"] = dict(zip(("encrypt", "decrypt"), paillier, strict=True))
    _table(found, rounds, paillier, settings)
    found.outcomes += compared(rounds, sum(paillier), here.values)
    return found


class _Here:
    """The training, the model and the control groups that all ways to send the update share."""

    def __init__(self, settings: StudySettings, given: dict[str, Any], clients: int, host: Group, apart: Group) -> None:
        from fedcipher.models import Learner

        data = load("mnist", str(Path(settings.data_dir) / "mnist"))
        images = int(given["dataset"]["images_per_round_and_client"])
        self._learner = Learner(_MODEL, _CLASSES, data.train_x[0], batch=images)
        self._start = self._learner.initial()
        self._data = data.train_x[:images], data.train_y[:images]
        self._epochs = int(given["epochs_per_round"])
        # The first calls compile. Their time does not count as training.
        self._learner.fit(self._start, *self._data, epochs=2, seed=0)
        self._runs, self._clients, self._host, self._apart = settings.runs, clients, host, apart
        _, self._update = self._training()
        self.values = sum(x.size for x in self._update)
        settings.say(f"{_MODEL}: {self.values:,} weights")

    def _training(self) -> tuple[float, list[Array]]:
        spent, (trained, _) = best(
            lambda: self._learner.fit(self._start, *self._data, epochs=self._epochs, seed=0), self._runs
        )
        return spent, [np.asarray(a - b, np.float32) for a, b in zip(trained, self._start, strict=True)]

    def plain(self) -> Round:
        raw = 4 * self.values
        goes = [
            clocked(lambda: [np.mean([x] * self._clients, axis=0) for x in self._update])[0] for _ in range(self._runs)
        ]
        return Round(self._training()[0], Spent(), Spent(), min(goes), max(goes), raw, raw)

    def host(self, name: str) -> Round:
        scheme = made(name, self._clients)
        keys = scheme.keygen(self._clients)
        encryptors = [scheme.encryptor(keys.client(c)) for c in range(self._clients)]
        return self._measured(scheme, encryptors, scheme.decryptor(keys.client(0)), keys.server())

    def sidecar(self, name: str, host: Round) -> Round:
        with sidecar(name, self._clients, self._apart.before) as (clients, key):
            return self._measured(made(name, self._clients), clients, clients[0], key).hopped(host)

    def engine(self, name: str, host: Round) -> Round:
        scheme = made(name, self._clients)
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedcipher-study-"))
            local = stack.enter_context(start_engines(scheme, self._clients, Path(folder) / "run"))
            self._apart.take(local.engine.process.pid)
            engines = [connect(local.target, device=f"client-{c}") for c in range(self._clients)]
            key = Authority(local.authority.address, local.server_credentials).current()
            encryptors = [e.encryptor() for e in engines]
            return self._measured(scheme, encryptors, engines[0].decryptor(), key).hopped(host)

    def paillier(self) -> tuple[float, float]:
        """Seconds of encryption and of decryption, measured on a sample and scaled."""
        scheme = made("paillier", self._clients, packing="none")
        keys = scheme.keygen(self._clients)
        sample: list[Array] = [np.random.default_rng(0).normal(0, 0.2, _SAMPLE).astype(np.float32)]
        encryptors = [scheme.encryptor(keys.client(c)) for c in range(self._clients)]
        one = self._crypto(scheme, encryptors, scheme.decryptor(keys.client(0)), keys.server(), sample)
        times = self.values / _SAMPLE
        return one.sealing.total * times, one.opening.total * times

    def _measured(
        self, scheme: Scheme, encryptors: Sequence[_Encrypts], decryptor: _Opens, key: _native.ServerKey
    ) -> Round:
        # Training is measured while the encrypting process runs, like in the paper's three modes.
        train, _ = self._training()
        return replace(self._crypto(scheme, encryptors, decryptor, key, self._update), train=train)

    def _crypto(
        self,
        scheme: Scheme,
        encryptors: Sequence[_Encrypts],
        decryptor: _Opens,
        key: _native.ServerKey,
        update: list[Array],
    ) -> Round:
        sealed: list[Spent] = []
        added: list[Spent] = []
        opened: list[Spent] = []
        up = down = 0
        # The first go starts processes and makes tables that later ones use, so it is not counted.
        for round_ in range(1, self._runs + 2):
            sealing, frame = self._charged(lambda: encryptors[0].encrypt(update, round=round_))  # noqa: B023
            frames = [frame, *(e.encrypt(update, round=round_) for e in encryptors[1:])]

            def whole(frames: list[bytes] = frames) -> bytes:
                aggregator = scheme.aggregator(key)
                for one in frames:
                    aggregator.add(one)
                return aggregator.finish()

            adding, aggregate = self._charged(whole)
            opening, _ = self._charged(lambda: decryptor.open(aggregate))  # noqa: B023
            up, down = len(frame), len(aggregate)
            if round_ > 1:
                sealed.append(sealing)
                added.append(adding)
                opened.append(opening)
        sums = [one.total for one in added]
        return Round(0.0, _least(sealed), _least(opened), min(sums), max(sums), up, down)

    def _charged(self, work: Callable[[], _T]) -> tuple[Spent, _T]:
        """Run ``work``. Returns the processor time of the host's and of the engine's group, and the result."""
        began = self._host.seconds(), self._apart.seconds()
        done = work()
        return Spent(self._host.seconds() - began[0], self._apart.seconds() - began[1]), done


def _least(goes: list[Spent]) -> Spent:
    """The go with the least total, so that both parts come from the same go."""
    return min(goes, key=lambda one: one.total)


def _table(found: Findings, rounds: dict[str, Round], paillier: tuple[float, float], settings: StudySettings) -> None:
    times: dict[str, Callable[[Round], float]] = {
        "training": lambda one: one.train,
        "encryption": lambda one: one.sealing.total,
        "decryption": lambda one: one.opening.total,
        "host CPU": lambda one: one.host,
        "engine CPU": lambda one: one.apart,
        "network": lambda one: one.network,
        "hop": lambda one: one.hop,
        "server": lambda one: one.add,
        "workflow": lambda one: one.workflow,
    }
    rows = [["mode", *times, "up", "down"]]
    for name, one in rounds.items():
        rows.append([name, *(seconds(of(one)) for of in times.values()), size(one.up), size(one.down)])
    found.tables.append(Table("A round at a client", rows))
    sealing, opening = map(seconds, paillier)
    found.notes += [
        f"seconds are those of the least of {settings.runs} goes; of encryption, decryption and the addition of "
        "ciphertexts one go more, the first, is left out, and training compiles before it is timed",
        f"network: {settings.link}, two clients in network namespaces at once, on the wall; all else is processor time",
        "encryption and decryption are what both control groups were charged with; host CPU and engine CPU are each "
        "group's part of the two",
        "hop: what encryption and decryption in the engine take more than on the host, of both sides' processor time, "
        "which the copies between them are; no SmartNIC's bus is in it. Communication is network and hop, workflow has "
        "the hop once",
        "how much one workflow is above another leaves out what their trainings, the same work, differ by",
        "the addition of what came of the engine increases nothing if its least go is not above the slowest of the "
        "host's",
        f"Paillier 2048, a ciphertext a weight, measured on {_SAMPLE} and scaled: encryption {sealing}, "
        f"decryption {opening}",
    ]
