"""FedBit, Fig. 7: one round of one client, encryption on the processor and on the simulated accelerator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedcipher._units import seconds
from fedcipher.codec import Array, Codec
from fedcipher.errors import ParameterError
from fedcipher.foreign_files import MAX_REPORT, read_json
from fedcipher.schemes import scheme

from fedcipher_research.published import doubt, figure, setup
from fedcipher_research.published.verdict import Outcome, judged
from fedcipher_research.studies.findings import Findings, StudySettings, Table
from fedcipher_research.studies.timing import best, ledgers
from fedcipher_research.studies.training import BATCHES, one_pass

__all__ = ["accelerator_seconds", "run"]

_PAPER, _PLACE = "fedbit", "Fig. 7"
_BITS = 12
# An assumed clock, in Hz. The accelerator has no timing report: docs/explanation/accelerator.md.
_CLOCK = 125e6
CYCLES = Path("hardware") / "synth" / "reports" / "cycles_p8.json"


@dataclass(frozen=True)
class _Round:
    train: float
    encrypt: float
    decrypt: float

    @property
    def total(self) -> float:
        return self.train + self.encrypt + self.decrypt

    @property
    def share(self) -> float:
        """Encryption in percent of the total."""
        return 100 * self.encrypt / self.total


def accelerator_seconds(path: Path, values: int) -> tuple[float, float]:
    """Seconds of (preparation and encryption, decryption) on the simulated device. Raises `ParameterError`.

    The cycles were counted for LeNet-5. Other models take the same number for each coefficient.
    """
    try:
        found = read_json(path, MAX_REPORT, follow=True)
        per = values / (2 * found["coefficients"]) / _CLOCK
        return (found["prepare"] + found["encrypt"]) * per, found["decrypt"] * per
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ParameterError(
            f"{path} has no cycles of the accelerator ({error}): run this in the folder of the sources, after "
            "`make hardware`"
        ) from error


def run(settings: StudySettings) -> Findings:
    """Train one round of a client, then encrypt and decrypt its update, for LeNet-5 and ResNet-20."""
    found = Findings(
        "One round of one client: training, encryption, decryption",
        [],
        [
            "training on two shared cores here, on a GPU there",
            "MNIST for Fashion-MNIST: as many images of the same shape",
            "CIFAR-10 here is a subset of 20,000 training images; CIFAR-100 was not at hand",
            "one pass over one of ten clients' images, as there; Nadam here, Adam there",
            "the accelerator is simulated: cycles over an assumed clock of 125 MHz, without the link and the host",
        ],
    )
    rows = [["model, data", "encryption by", "training", "encryption", "decryption", "total", "encryption's share"]]
    misfit = doubt(_PAPER, "CIFAR traffic does not fit ResNet-20")
    for model, data, named in (("lenet5", "mnist", "Fashion-MNIST"), ("resnet20", "cifar10", "CIFAR-10")):
        small = data == "cifar10"
        on_cpu, values = _measured(model, data, settings)
        encrypt, decrypt = accelerator_seconds(CYCLES, values)
        on_card = _Round(on_cpu.train, encrypt, decrypt)
        for by, spent in (("CPU", on_cpu), ("FPGA", on_card)):
            shown = [seconds(x) for x in (spent.train, spent.encrypt, spent.decrypt, spent.total)]
            rows.append([f"{model}, {data}", by.replace("FPGA", "simulated FPGA"), *shown, f"{spent.share:.3g} %"])
            found.figures[f"{model}, {by}"] = vars(spent)
            because = "a subset of the images, and a model that what is printed does not fit" if small else ""
            if by == "FPGA" and not because:
                because = "the accelerator is simulated, at a clock that is assumed"
            doubts = (misfit,) if small else ()
            found.outcomes += [
                _judged(f"{named} total, {by}", spent.total, because, doubts),
                _judged(f"{named} encryption share, {by}", spent.share, because, doubts),
            ]
        settings.say(f"{model}: a round of {seconds(on_cpu.total)}, {on_cpu.share:.3g} % of it encryption")
    found.tables.append(Table("Seconds", rows))
    found.notes += [
        f"training: {BATCHES} batches, the least of {settings.runs}, scaled to a pass over the client's images",
        "encryption with `fedbit-paper` includes what needs no data and could be made ahead",
    ]
    return found


def _judged(name: str, here: float, because: str, doubts: tuple[int, ...]) -> Outcome:
    return judged(name, figure(_PAPER, _PLACE, name), here, because=because, doubts=doubts)


def _measured(model: str, data: str, settings: StudySettings) -> tuple[_Round, int]:
    given = setup(_PAPER)
    clients, batch = int(given["clients"]), int(given["batch_size"])
    train, update = one_pass(model, data, settings.data_dir, clients=clients, batch=batch, runs=settings.runs)
    encrypt, decrypt = _crypto(update, clients, settings.runs)
    return _Round(train, encrypt, decrypt), sum(a.size for a in update)


def _crypto(update: list[Array], clients: int, runs: int) -> tuple[float, float]:
    codec = Codec(bits=_BITS, clip=1.0)
    made = scheme("bfv", clients=clients, min_contributions=1, preset="fedbit-paper", codec=codec)
    with ledgers():
        keys = made.keygen(1)
        encryptor, decryptor = made.encryptor(keys.client(0)), made.decryptor(keys.client(0))
        rounds = iter(range(1, runs + 1))
        encrypt, frame = best(lambda: encryptor.encrypt(update, round=next(rounds)), runs)
        aggregator = made.aggregator(keys.server())
        aggregator.add(frame)
        opened = aggregator.finish()
        decrypt, _ = best(lambda: decryptor.decrypt(opened), runs)
    return encrypt, decrypt
