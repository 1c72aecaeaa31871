# pyright: basic
"""The measurements of a training run as tables, as JSON and, with `fedcipher.app.report_page`, as a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedcipher._files import refusal
from fedcipher._machine import machine, packages
from fedcipher._terminal import print_table
from fedcipher._units import seconds, share, size
from fedcipher.adapters.flower import RoundRecord
from fedcipher.dp import Privacy, grid
from fedcipher.engine.accelerator import CLOCK_MHZ, Accelerator
from fedcipher.errors import ReportError
from fedcipher.federation.records import ClientRecord
from fedcipher.foreign_files import MAX_REPORT, read_json
from fedcipher.foreign_text import show
from fedcipher.schemes import Scheme, from_spec, scheme_class

__all__ = ["PHASES", "Report", "RoundResult"]

PHASES = ("train", "offline", "encode", "encrypt", "decrypt")
"""The phases that a client's seconds are counted under.

``offline`` is work that needs no data and runs while the client trains.
"""
_METRICS = ("accuracy", "loss", "precision", "recall", "f1")
# The norm of the noise over the clipping norm: at 3 a model of docs/explanation/dp.md still learns, at 23 hardly.
_MAX_NOISE_RATIO = 5
_CYCLES = {
    "prepare_cycles": "preparation",
    "encrypt_cycles": "encryption",
    "decrypt_cycles": "decryption",
    "key_cycles": "keys",
}
_SECONDS = {
    "link_seconds": "accelerator's link (modelled)",
    "host_seconds": "host beside the accelerator",
    "wait_seconds": "simulating the accelerator",
}
_COUNTED = {
    **{kind: f"cycles of {name}" for kind, name in _CYCLES.items()},
    "ciphertexts": "ciphertexts",
    "bytes_to": "to the card",
    "bytes_from": "from it",
    "link_seconds": "link",
    "host_seconds": "host",
    "wait_seconds": "simulating",
    "fallbacks": "done by the core",
}
"""The figures that an accelerator's engine counts, and their names in tables."""
# Counts among the app's metrics, which are not results.
_NOT_RESULTS = ("num-examples", "training num-examples")
# Parameters that the threat line states in a sentence of its own, or that do not matter for security.
_NOT_IN_THREAT = ("clients", "max_weight", "min_contributions")


@dataclass
class RoundResult:
    """One round: metrics, mean seconds by phase and mean bytes per client. Unknown figures are left out or None."""

    round: int
    clients: int
    left_out: list[str]
    metrics: dict[str, float]
    seconds: dict[str, float]
    upload_bytes: float
    setup_bytes: float
    download_bytes: float
    evaluation_download_bytes: float
    clipped: float | None
    """How many values of an update were clipped, as a mean over clients."""
    elements: float
    wall_seconds: float
    unfinished: str | None = None
    """Why the round has no aggregate; None if it has one."""
    saturated: float | None = None
    """How many values of an update were not finite numbers."""
    kept: float | None = None
    """The share of the updates that coding preserved, 0 to 1."""
    model: str = ""
    """SHA-256 of the model after the round, if it was opened."""
    not_opened: str = ""
    """Why a key could not open the metrics; empty if they were opened, or if there is no key."""
    accelerator: dict[str, float] = field(default_factory=dict)
    """The work of the engine's accelerators for all clients (`fedcipher.engine.accelerator.usage`)."""

    @classmethod
    def of(cls, record: RoundRecord, *, model: str = "", not_opened: str = "") -> RoundResult:
        """Average a server's record over the clients that took part."""
        mean = record.mean
        known = {*record.counted, *(phase for client in record.clients for phase in client.phases)}
        spent = {phase: mean(f"{phase}_seconds") for phase in PHASES if f"{phase}_seconds" in known}
        spent["aggregate"] = record.aggregate_seconds
        metrics = {f"training {name}": value for name, value in record.metrics.get("train", {}).items()}
        metrics.update({**record.metrics.get("evaluate", {}), **record.metrics.get("server", {})})
        everyone = [*record.clients, *record.evaluations]
        return cls(
            round=record.round,
            clients=record.accepted,
            left_out=[f"{_named(c)}: {c.left_out}" for c in everyone if c.left_out],
            metrics={k: float(v) for k, v in metrics.items() if isinstance(v, (int, float))},
            seconds=spent,
            upload_bytes=mean("upload_bytes") - mean("setup_bytes"),
            setup_bytes=mean("setup_bytes"),
            download_bytes=mean("download_bytes"),
            evaluation_download_bytes=record.evaluation_mean("download_bytes"),
            clipped=record.counted.get("clipped"),
            elements=record.elements,
            wall_seconds=record.wall_seconds,
            unfinished=record.unfinished,
            saturated=record.counted.get("saturated"),
            kept=record.counted.get("kept"),
            model=model,
            not_opened=not_opened,
        )

    @property
    def clipped_share(self) -> float | None:
        """The share of the values that clipping changed, 0 to 1."""
        return None if self.clipped is None else self.clipped / max(1.0, self.elements)


@dataclass
class Report:
    """All rounds of one run, with the settings, scheme and machine that they were run with."""

    command: str
    settings: dict[str, Any]
    scheme: str
    scheme_params: dict[str, Any]
    codec: dict[str, Any]
    derived: dict[str, str]
    machine: dict[str, str]
    link_mbit: float
    """Rate of the link that transfer times are computed for; 0 to compute none."""
    engine: bool = False
    lanes: int = 0
    """Lanes of the engine's simulated accelerator; 0 without one."""
    privacy: str = ""
    """The guarantee of differential privacy; empty without noise."""
    rounds: list[RoundResult] = field(default_factory=list)
    beside: Report | None = None
    """The same run under another scheme, for comparison."""

    @classmethod
    def begin(
        cls,
        settings: dict[str, Any],
        scheme: Scheme,
        command: str,
        link_mbit: float,
        *,
        engine: bool = False,
        accelerator: Accelerator | None = None,
    ) -> Report:
        """A report without rounds, with the run's settings, scheme and machine."""
        kept = {k: v for k, v in settings.items() if k not in ("keys", "data_dir", "out")}
        return cls(
            command=command,
            settings=kept,
            scheme=scheme.name,
            scheme_params=scheme.params(),
            codec=scheme.codec.to_dict(),
            derived=scheme.describe(),
            machine={**machine(), **packages("fedcipher", "flwr", "jax", "numpy")},
            link_mbit=link_mbit,
            engine=engine,
            lanes=accelerator.lanes if accelerator else 0,
            privacy=scheme.codec.privacy.statement(scheme.noise_shares) if scheme.codec.privacy else "",
        )

    @classmethod
    def load(cls, path: Path) -> Report:
        """Read the report in a ``report.json``. Raises `ReportError`."""
        try:
            return cls._from_dict(read_json(path, MAX_REPORT, follow=True))
        except OSError as error:
            raise ReportError(f"cannot read {refusal(error, path)}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReportError(f"{path} is not a report.json of this version; run the training again") from error

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> Report:
        kept = {k: v for k, v in data.items() if k not in ("totals", "rounds", "beside", "threat", "noise")}
        beside = data.get("beside")
        rounds = [RoundResult(**r) for r in data["rounds"]]
        return cls(**kept, rounds=rounds, beside=cls._from_dict(beside) if beside else None)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values for JSON, with the totals computed from them."""
        beside = self.beside.to_dict() if self.beside else None
        derived = {"threat": self.threat, "noise": self.noise, "totals": self.totals()}
        return {**asdict(self), "beside": beside, **derived}

    @property
    def title(self) -> str:
        """The scheme, and the data set or the name of the run."""
        return f"{self.scheme} on {self.settings.get('dataset') or self.settings['run']}"

    @property
    def simulated(self) -> bool:
        """Whether one machine ran all clients, as ``fedcipher train`` does."""
        return "dataset" in self.settings

    @property
    def asked(self) -> int:
        """The number of rounds that the run was asked for; 0 if unknown."""
        return self.settings.get("rounds", 0)

    @property
    def bits(self) -> str:
        """The bits of a coded value: one number, or the range over all tensors."""
        bits = self.codec["bits"]
        return f"{bits} bits a value" if isinstance(bits, int) else f"{min(bits)} to {max(bits)} bits a value"

    @property
    def threat(self) -> str:
        """One line: scheme, parameters, which attacks it withstands, what breaks it, minimum contributors of a sum."""
        info = scheme_class(self.scheme).info
        params = [f"{k}={v}" for k, v in self.scheme_params.items() if k not in _NOT_IN_THREAT and v is not None]
        params += [self.bits]
        least = self.scheme_params.get("min_contributions")
        sums = f" A sum is opened only with at least {least} contributors." if least else ""
        keys = " Keys are in an engine, a separate process." if self.engine else ""
        named = f"{self.scheme} ({', '.join(params)})"
        return f"{named} withstands: {info.withstands}. Broken by: {info.broken_by}.{sums}{keys}"

    @property
    def noise(self) -> str:
        """A sentence on the noise in a mean; empty without privacy, and before the first round."""
        given = self.codec.get("privacy")
        sizes = [(int(r.elements), r.clients) for r in self.rounds if r.elements and r.clients]
        if not given or not sizes:
            return ""
        made = from_spec({"scheme": self.scheme, "params": self.scheme_params, "codec": self.codec})
        privacy, (elements, clients) = Privacy(**given), sizes[0]
        chosen = grid(privacy, made.codec.bit_widths[0], elements, made.noise_shares)
        ratio = chosen.noise_norm(elements, clients) / privacy.clip
        said = f"The noise in the mean of {clients} clients is expected to have {ratio:.2g} times the norm that updates"
        said += f" are clipped to ({privacy.clip:g})."
        if ratio > _MAX_NOISE_RATIO:
            said += " WARNING: this is more than the norm of any mean of updates, and it hides most of the training"
            said += " signal. More clients, a larger epsilon, fewer rounds or a smaller model help."
        return said

    def spent(self) -> dict[str, float]:
        """Mean seconds of each known phase, of a client and of the server."""
        out: dict[str, float] = {}
        for name in [*PHASES, "aggregate"]:
            spent = [r.seconds[name] for r in self.rounds if name in r.seconds]
            if spent:
                out[name] = sum(spent) / len(spent)
        return out

    def totals(self) -> dict[str, float]:
        """Means over rounds of the known figures per client, and the last round's metrics."""
        count = max(1, len(self.rounds))
        out = self.spent()
        out["upload_bytes"] = sum(r.upload_bytes for r in self.rounds) / count
        out["setup_bytes"] = max((r.setup_bytes for r in self.rounds), default=0.0)
        # The first download is the initial model, unencrypted as in any federation.
        later = [r.download_bytes for r in self.rounds if r.round > 1] or [0.0]
        out["download_bytes"] = sum(later) / len(later)
        out["evaluation_download_bytes"] = sum(r.evaluation_download_bytes for r in self.rounds) / count
        cut = [(r.clipped, r.elements) for r in self.rounds if r.clipped is not None]
        if cut:
            out["clipped_fraction"] = sum(clipped for clipped, _ in cut) / max(1.0, sum(of for _, of in cut))
        kept = [r.kept for r in self.rounds if r.kept is not None]
        if kept:
            out["kept_fraction"] = min(kept)
        out["wall_seconds"] = sum(r.wall_seconds for r in self.rounds)
        for kind in dict.fromkeys(kind for r in self.rounds for kind in r.accelerator):
            out[f"accelerator_{kind}"] = sum(r.accelerator.get(kind, 0.0) for r in self.rounds) / count
        return {**out, **(self.rounds[-1].metrics if self.rounds else {})}

    @property
    def model(self) -> str:
        """SHA-256 of the model of the last round, if it was opened."""
        return self.rounds[-1].model if self.rounds else ""

    def _figures(self) -> dict[str, str]:
        t = self.totals()
        out = {"model (first bits of its SHA-256)": self.model[:12]} if self.model else {}
        out.update({name: f"{t[name]:.4f}" for name in _METRICS if name in t})
        out.update({f"{name}, per client and round": _if_known(seconds, t.get(name)) for name in PHASES})
        for way in ("upload", "download", "evaluation_download"):
            name, count = way.replace("evaluation_download", "download for evaluation"), t[f"{way}_bytes"]
            out[f"{name}, bytes per client and round"] = f"{count:,.0f}"
            if self.link_mbit:
                out[f"{name}, at {self.link_mbit:g} Mbit/s (computed)"] = seconds(count * 8 / (self.link_mbit * 1e6))
        if t["setup_bytes"]:
            out["upload once a key epoch, bytes per client"] = f"{t['setup_bytes']:,.0f}"
        out["aggregate, on the server, per round"] = _if_known(seconds, t.get("aggregate"))
        if self.lanes:
            done = {kind: t.get(f"accelerator_{kind}", 0.0) for kind in _COUNTED}
            cycles = sum(done[kind] for kind in _CYCLES)
            out.update({f"accelerator, cycles of {_CYCLES[kind]}, per round": f"{done[kind]:,.0f}" for kind in _CYCLES})
            out[f"accelerator, at {CLOCK_MHZ:g} MHz (assumed), per round"] = seconds(cycles / (CLOCK_MHZ * 1e6))
            out.update({f"{_SECONDS[kind]}, per round": seconds(done[kind]) for kind in _SECONDS})
        out["values clipped"] = _if_known(share, t.get("clipped_fraction"))
        out["kept of the updates, least of all rounds"] = _if_known(share, t.get("kept_fraction"))
        out["all rounds"] = seconds(t["wall_seconds"])
        return out

    def summary(self) -> list[list[str]]:
        """The closing table with its head first; the run beside this one has a column too."""
        runs = [self, self.beside] if self.beside else [self]
        columns = [run._figures() for run in runs]
        # A dict preserves the order of the figures' names.
        names = dict.fromkeys(name for column in columns for name in column)
        return [["figure", *(run.scheme for run in runs)], *([n, *(c.get(n, "-") for c in columns)] for n in names)]

    def per_round(self) -> list[list[str]]:
        """A head and a row per round; bytes are per client."""
        names = self.shown()
        rows = [["round", *names, "clients", "left out", "clipped", "up", "down", "took"]]
        for r in self.rounds:
            rows.append(
                [
                    str(r.round),
                    *(_metric(name, r.metrics.get(name)) for name in names),
                    str(r.clients),
                    str(len(r.left_out)),
                    _if_known(share, r.clipped_share),
                    size(r.upload_bytes),
                    size(r.download_bytes),
                    seconds(r.wall_seconds),
                ]
            )
        return rows

    def accelerated(self) -> list[list[str]]:
        """A head and a row per round of the accelerators' work for all clients; empty without accelerators."""
        if not self.lanes:
            return []
        rows = [["round", *_COUNTED.values()]]
        for r in self.rounds:
            done = [(kind, r.accelerator.get(kind, 0.0)) for kind in _COUNTED]
            rows.append([str(r.round), *(_counted(kind, value) for kind, value in done)])
        return rows

    def accelerator_note(self) -> str:
        """An explanation of the accelerators' figures; empty without accelerators."""
        if not self.lanes:
            return ""
        return (
            f"Simulated accelerators of {self.lanes} lanes, one per key, did the engine's arithmetic. The model counts "
            "their cycles for all clients. Seconds of the link are computed from bytes (PCIe 3.0 x16), seconds of the "
            "host are measured, and no figure contains another. A simulation takes far longer than a device: the times "
            "of offline, encrypt, decrypt and whole rounds are mostly times of the simulation, not of a device."
        )

    def shown(self) -> list[str]:
        """The names of the two metrics in tables: accuracy and loss, or the first two that another app reports."""
        known = dict.fromkeys(name for r in self.rounds for name in r.metrics if name not in _NOT_RESULTS)
        first = [name for name in ("accuracy", "loss") if name in known or not known]
        # Metrics of training come last: they belong to the clients' local models, which are not kept.
        others = sorted((name for name in known if name not in first), key=lambda name: name.startswith("training "))
        return [*first, *others][:2]

    def omissions(self) -> list[str]:
        """Lines that name the clients left out of each round with the reason, and the rounds without an aggregate."""
        out: list[str] = []
        for r in self.rounds:
            out += [f"round {r.round}, {reason}" for reason in r.left_out]
            out += [f"round {r.round} has no aggregate: {r.unfinished}"] if r.unfinished else []
            out += [f"round {r.round}, metrics: {r.not_opened}"] if r.not_opened else []
        return out

    def same_model(self) -> bool:
        """Whether the run beside this one ends with the same model, bit for bit."""
        return bool(self.beside and self.model and self.model == self.beside.model)

    def compared(self) -> str:
        """A sentence that compares this run with the one beside it; empty without one."""
        if not (self.beside and self.rounds and self.beside.rounds):
            return ""
        ours, theirs = self.totals(), self.beside.totals()
        if self.same_model():
            return "Both runs end with the same model: the digests are equal."
        gap = ours.get("accuracy", 0.0) - theirs.get("accuracy", 0.0)
        return (
            f"The runs end with different models; accuracy under {self.scheme} is {gap * 100:+.2f} percentage points."
        )

    def show(self) -> None:
        """Print threat, rounds and totals."""
        show(self.threat)
        for said in (self.privacy, self.noise, self.accelerator_note()):
            if said:
                show(said)
        for run in (self, self.beside):
            if run is not None:
                print_table(f"{run.title}: rounds", run.per_round())
        if self.accelerated():
            print_table("accelerators, all clients", self.accelerated())
        print_table("means over rounds; metrics of the last round", self.summary())
        if self.compared():
            show(self.compared())


def _named(client: ClientRecord) -> str:
    """The client's number in its key, or the node's number if the key's is unknown."""
    return f"node {client.node}" if client.client is None else f"client {client.client}"


def _if_known(shown: Callable[[float], str], value: float | None) -> str:
    return "-" if value is None else shown(value)


def _counted(kind: str, value: float) -> str:
    if kind in _SECONDS:
        return seconds(value)
    return size(value) if kind.startswith("bytes") else f"{value:,.0f}"


def _metric(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2%}" if name == "accuracy" else f"{value:.4f}"
