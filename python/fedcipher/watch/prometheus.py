"""A run's journal as Prometheus metrics, with the encrypted metrics that a key has opened."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.registry import Collector

from fedcipher.federation.server.journal import Past

__all__ = ["CONTENT_TYPE", "exposition"]


def exposition(past: Past) -> bytes:
    """The text that a Prometheus server scrapes. Counters cover the whole run, even if its server was restarted."""
    registry = CollectorRegistry()
    registry.register(_Journal(past))
    return generate_latest(registry)


class _Journal(Collector):
    def __init__(self, past: Past) -> None:
        self._past = past

    def collect(self) -> Iterable[Metric]:
        ended = self._past.finished
        yield GaugeMetricFamily("fedcipher_server_running", "Whether a server writes the run", self._past.running)
        yield GaugeMetricFamily("fedcipher_round", "The newest round that ended", ended[-1].round if ended else 0)
        rounds = Counter("none" if record.unfinished else "aggregate" for record in ended)
        yield _counter("fedcipher_rounds", "Rounds that ended, by outcome", "outcome", rounds)
        updates = Counter[str]()
        for record in ended:
            refused = sum(client.refused for client in record.clients)
            updates["accepted"] += record.accepted
            updates["refused_by_client"] += refused
            updates["left_out"] += len(record.clients) - record.accepted - refused
            updates["late"] += len(record.late)
        yield _counter("fedcipher_updates", "Updates of clients; a late one was left out before", "outcome", updates)
        seconds, sizes = defaultdict[str, float](float), defaultdict[str, float](float)
        for record in ended:
            seconds["aggregate"] += record.aggregate_seconds
            sizes["aggregate"] += record.aggregate_bytes
            if "train_seconds" in record.counted:
                seconds["train"] += record.counted["train_seconds"] * record.accepted
            for client in record.clients:
                for phase, value in client.phases.items():
                    name, _, unit = phase.rpartition("_")
                    counted = {"seconds": seconds, "bytes": sizes}.get(unit)
                    if counted is not None:
                        counted[name] += value
        yield _counter("fedcipher_phase_seconds", "Seconds of all clients, and of the server", "phase", seconds)
        yield _counter("fedcipher_bytes", "Bytes of all clients, and of aggregates", "what", sizes)
        wall = sum(record.wall_seconds for record in ended)
        yield CounterMetricFamily("fedcipher_round_seconds", "Seconds that rounds have taken", value=wall)
        latest = GaugeMetricFamily("fedcipher_metric", "Metrics of the newest round", labels=["part", "name"])
        for part, metrics in ended[-1].metrics.items() if ended else ():
            for name, value in metrics.items():
                if isinstance(value, (int, float)):
                    latest.add_metric([part, name], value)
        yield latest


def _counter(name: str, said: str, label: str, values: Mapping[str, float]) -> Metric:
    made = CounterMetricFamily(name, said, labels=[label])
    for of, value in sorted(values.items()):
        made.add_metric([of], value)
    return made
