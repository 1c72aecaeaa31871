"""What campaigns that hurt real processes have counted, for `research/benches/faults.py`."""

import datetime
import json

from places import ROOT

COUNTS = ROOT / "runs" / "faults"


def counted(run, killed, rounds, ended, lost, seconds):
    """Notes a run whose every assertion held: ``killed`` are the processes, in order, by kind."""
    COUNTS.mkdir(parents=True, exist_ok=True)
    made = {
        "run": run,
        "killed": killed,
        "rounds": rounds,
        "ended": ended,
        "lost": lost,
        "seconds": round(seconds),
        "date": str(datetime.date.today()),
    }
    (COUNTS / f"{run}.json").write_text(json.dumps(made), encoding="utf-8")
