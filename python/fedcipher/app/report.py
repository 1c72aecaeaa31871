# pyright: basic
"""What a training run measured: a table, JSON, and a self-contained HTML page."""

from __future__ import annotations

import base64
import html
import io
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from fedcipher._machine import machine, packages
from fedcipher.flower import RoundRecord
from fedcipher.schemes import Scheme

matplotlib.use("Agg")

__all__ = ["Report", "RoundResult"]

_CLIENT_PHASES = ["train", "offline", "encode", "encrypt", "decrypt"]


@dataclass
class RoundResult:
    """One round: metrics, mean seconds by phase and mean bytes per client."""

    round: int
    clients: int
    left_out: list[str]
    metrics: dict[str, float]
    seconds: dict[str, float]
    upload_bytes: float
    setup_bytes: float
    download_bytes: float
    evaluation_download_bytes: float
    clipped: float
    elements: float
    wall_seconds: float

    @classmethod
    def of(cls, record: RoundRecord, metrics: dict[str, Any], wall: float) -> RoundResult:
        """Averages a server's record over the clients that took part."""
        took_part = [c.phases for c in record.clients if c.left_out is None]
        evaluated = [c.phases for c in record.evaluations if c.left_out is None]

        def mean(key: str, of: list[dict[str, float]] = took_part) -> float:
            return sum(p.get(key, 0.0) for p in of) / max(1, len(of))

        seconds = {phase: mean(f"{phase}_seconds") for phase in _CLIENT_PHASES}
        seconds["aggregate"] = record.aggregate_seconds
        everyone = [*record.clients, *record.evaluations]
        return cls(
            round=record.round,
            clients=len(took_part),
            left_out=[f"client {c.client}: {c.left_out}" for c in everyone if c.left_out],
            metrics={k: float(v) for k, v in metrics.items()},
            seconds=seconds,
            upload_bytes=mean("upload_bytes") - mean("setup_bytes"),
            setup_bytes=mean("setup_bytes"),
            download_bytes=mean("download_bytes"),
            evaluation_download_bytes=mean("download_bytes", evaluated),
            clipped=mean("clipped"),
            elements=mean("elements"),
            wall_seconds=wall,
        )


@dataclass
class Report:
    """All rounds of one run, and what they were run with."""

    command: str
    settings: dict[str, Any]
    scheme: str
    scheme_params: dict[str, Any]
    codec: dict[str, Any]
    derived: dict[str, str]
    machine: dict[str, str]
    link_mbit: float
    rounds: list[RoundResult] = field(default_factory=list)

    @classmethod
    def begin(cls, settings: dict[str, Any], scheme: Scheme, command: str, link_mbit: float) -> Report:
        """An empty report that knows its circumstances."""
        kept = {k: v for k, v in settings.items() if k not in ("keys", "data_dir")}
        return cls(
            command=command,
            settings=kept,
            scheme=scheme.name,
            scheme_params=scheme.params(),
            codec=scheme.codec.to_dict(),
            derived=scheme.describe(),
            machine={**machine(), **packages("fedcipher", "flwr", "jax", "numpy")},
            link_mbit=link_mbit,
        )

    def totals(self) -> dict[str, float]:
        """Means over rounds of the per-client figures; the final round's metrics."""
        count = max(1, len(self.rounds))
        out = {name: sum(r.seconds[name] for r in self.rounds) / count for name in [*_CLIENT_PHASES, "aggregate"]}
        out["upload_bytes"] = sum(r.upload_bytes for r in self.rounds) / count
        out["setup_bytes"] = max((r.setup_bytes for r in self.rounds), default=0.0)
        # The first download is the initial model in the clear, as in any federation.
        later = [r.download_bytes for r in self.rounds if r.round > 1] or [0.0]
        out["download_bytes"] = sum(later) / len(later)
        out["evaluation_download_bytes"] = sum(r.evaluation_download_bytes for r in self.rounds) / count
        out["clipped_fraction"] = sum(r.clipped for r in self.rounds) / max(1.0, sum(r.elements for r in self.rounds))
        out["wall_seconds"] = sum(r.wall_seconds for r in self.rounds)
        return {**out, **(self.rounds[-1].metrics if self.rounds else {})}

    def _link_seconds(self, size: float) -> float:
        return size * 8 / (self.link_mbit * 1e6)

    def rows(self) -> list[tuple[str, str]]:
        """The closing table."""
        t = self.totals()
        rows = [("model (first bits of its SHA-256)", f"{int(t['model']):012x}")] if "model" in t else []
        rows += [(name, f"{t[name]:.4f}") for name in ("accuracy", "loss", "precision", "recall", "f1") if name in t]
        rows += [(f"{name}, seconds per client and round", f"{t[name]:.6f}") for name in _CLIENT_PHASES]
        for way in ("upload", "download", "evaluation_download"):
            size = t[f"{way}_bytes"]
            name = way.replace("evaluation_download", "download for evaluation")
            rows.append((f"{name}, bytes per client and round", f"{size:,.0f}"))
            rows.append((f"{name}, s at {self.link_mbit:g} Mbit/s (computed)", f"{self._link_seconds(size):.6f}"))
        if t["setup_bytes"]:
            rows.append(("upload once a key epoch, bytes per client", f"{t['setup_bytes']:,.0f}"))
        rows.append(("aggregate, server seconds per round", f"{t['aggregate']:.6f}"))
        rows.append(("values clipped", f"{t['clipped_fraction']:.4%}"))
        rows.append(("wall seconds", f"{t['wall_seconds']:.1f}"))
        return rows

    def show(self, console: Console) -> None:
        """Print rounds and totals."""
        table = Table(title=f"{self.scheme} on {self.settings['dataset']}: rounds")
        for name in ("round", "clients", "acc.", "loss", "F1", "up kB", "down kB", "clipped", "s"):
            table.add_column(name, justify="right")
        for r in self.rounds:
            m = r.metrics
            table.add_row(
                str(r.round),
                str(r.clients) + ("" if not r.left_out else f" (-{len(r.left_out)})"),
                f"{m.get('accuracy', float('nan')):.4f}",
                f"{m.get('loss', float('nan')):.4f}",
                f"{m.get('f1', float('nan')):.4f}",
                f"{r.upload_bytes / 1e3:,.2f}",
                f"{r.download_bytes / 1e3:,.2f}",
                f"{r.clipped:,.0f}",
                f"{r.wall_seconds:.1f}",
            )
        console.print(table)
        summary = Table(title="means over rounds; metrics of the last round")
        summary.add_column("figure")
        summary.add_column(self.scheme, justify="right")
        for name, value in self.rows():
            summary.add_row(name, value)
        console.print(summary)

    def write(self, folder: Path) -> None:
        """Write ``report.json`` and ``report.html``."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {**asdict(self), "totals": self.totals()}
        (folder / "report.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        (folder / "report.html").write_text(self._html(), encoding="utf-8")

    def _html(self) -> str:
        def table(rows: list[tuple[str, str]]) -> str:
            cells = "".join(f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>" for a, b in rows)
            return f"<table>{cells}</table>"

        setup = {**self.settings, **self.scheme_params, **self.codec, **self.derived, **self.machine}
        left_out = [(f"round {r.round}", reason) for r in self.rounds for reason in r.left_out]
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fedcipher: {self.scheme} on {html.escape(str(self.settings["dataset"]))}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b2733; }}
img {{ width: 100%; height: auto; }} code {{ background: #eef2f6; padding: .1em .3em; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; width: 100%; }} td {{ border-bottom: 1px solid #d7dee6; padding: .25rem .5rem; }}
td:last-child {{ text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }}
</style></head><body>
<h1>{self.scheme} on {html.escape(str(self.settings["dataset"]))}</h1>
<p><code>{html.escape(self.command)}</code></p>
<img alt="accuracy and traffic over rounds" src="data:image/png;base64,{self._plot()}">
<h2>Result</h2>{table(self.rows())}
<h2>Clients left out</h2>{table(left_out) if left_out else "<p>none</p>"}
<h2>Set-up</h2>{table([(str(k), str(v)) for k, v in setup.items()])}
</body></html>
"""

    def _plot(self) -> str:
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        accuracy, traffic, phases = figure.subplots(1, 3)
        x = [r.round for r in self.rounds]
        accuracy.plot(x, [r.metrics.get("accuracy", float("nan")) for r in self.rounds], marker="o", color="#0b6e99")
        accuracy.set(title="accuracy", xlabel="round", ylim=(None, 1.0))
        traffic.plot(x, [r.upload_bytes / 1e3 for r in self.rounds], marker="o", label="up", color="#0b6e99")
        traffic.plot(x, [r.download_bytes / 1e3 for r in self.rounds], marker="s", label="down", color="#d9822b")
        traffic.set(title="kB per client", xlabel="round", ylim=(0, None))
        traffic.legend()
        t = self.totals()
        names = [*_CLIENT_PHASES, "aggregate"]
        phases.barh(names, [t[n] * 1e3 for n in names], color="#0b6e99")
        phases.set(title="ms per round", xscale="symlog", xlim=(0, None))
        phases.invert_yaxis()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=120)
        return base64.b64encode(buffer.getvalue()).decode()
