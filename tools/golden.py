"""Writes today's keys, frames, rosters, runs and memories of every scheme: `make golden`, once a release.

The files go to tests/golden/VERSION.tar.xz. `tests/schemes/test_golden.py` opens them in all later versions. An
existing archive is never written again, because only the sources of its version can make it.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import tarfile
import tempfile
from contextlib import AbstractContextManager, redirect_stdout
from importlib.metadata import version
from pathlib import Path

import numpy as np
from archive import bare
from fedcipher import Codec, cli, keys
from fedcipher._environment import variable
from fedcipher.adapters.flower import SecureStrategy, open_run
from fedcipher.dp import Privacy
from fedcipher.schemes import KeySet, Scheme, Variant, every_scheme
from flwr.serverapp.strategy import FedAvg

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from flower_harness import LocalGrid, initial, make_app, record

GOLDEN = ROOT / "tests" / "golden"
CLIENTS, ROUND = 3, 7
VALUES = [np.array([0.5, -0.25, 0.125, 0.0, -1.0], np.float32), np.array(0.75, np.float32)]
NARROW = Codec(bits=12, clip=1.0)
PARTIES = ("ada", "bob", "cid")
KEPT = ("client-0.key", "aggregate.fedc", "opened.json")

BASELINES = ("paillier", "ckks")
"""Baselines whose files are kept too: one with small ciphertexts, and one of SEAL's."""
_PRIVACY = Privacy(clip=1.0, noise_multiplier=1.0, rounds=5, delta=1e-5)
CODECS = {"auto": Codec(bits="auto"), "privacy": Codec(bits=20, privacy=_PRIVACY)}
"""Codecs that change a key; their files are made under `flashe`."""


def cases() -> dict[str, tuple[Variant, Codec]]:
    """The cases by their folders' names: every variant of the core's schemes, the baselines, and the codecs."""
    kept = [variant for variant in every_scheme() if variant.in_core or variant.name in BASELINES]
    (flashe,) = (variant for variant in kept if variant.name == "flashe")
    codecs = {f"flashe-{name}": (flashe, codec) for name, codec in CODECS.items()}
    return {variant.name: (variant, NARROW) for variant in kept} | codecs


def runs() -> list[str]:
    """Names of cases for which a run of two rounds is kept: schemes whose sums are additions."""
    return [
        name
        for name, (variant, _) in cases().items()
        if variant.in_core and name == variant.scheme.name and not variant.info.workers
    ]


def large(name: str) -> bool:
    """Return True if only one client's key and the aggregate are kept. A server key of PASTA has 70 to 324 MB."""
    return cases()[name][0].info.workers or name == "ckks"


def state_in(folder: Path) -> AbstractContextManager[None]:
    """Keep the parties' state in ``folder``."""
    return variable("FEDCIPHER_STATE_DIR", str(folder))


def made(name: str) -> Scheme:
    """The scheme of a case."""
    variant, codec = cases()[name]
    return variant.make(clients=CLIENTS, codec=codec)


def write(name: str, folder: Path) -> None:
    """Write one case: ``keys``, ``frames`` with their decrypted mean, and ``state`` after the round."""
    scheme = made(name)
    issued = scheme.keygen(CLIENTS)
    keys.save(issued, scheme, folder / "keys")
    with state_in(folder / "state"):
        frames = folder / "frames"
        frames.mkdir()
        aggregate = summed(scheme, issued, frames)
        (frames / "aggregate.fedc").write_bytes(aggregate)
        opened = scheme.committee and scheme.committee.reveals_to_server
        opens = scheme.committee.server_decryptor(issued.server()) if opened else None
        mean = (opens or scheme.decryptor(issued.client(0))).decrypt(aggregate, round=ROUND)
    (folder / "opened.json").write_text(json.dumps([x.tolist() for x in mean]))


def summed(scheme: Scheme, issued: KeySet, frames: Path) -> bytes:
    """The aggregate of a round of equal updates. Each frame of the round is written into ``frames``."""
    aggregator = scheme.aggregator(issued.server(), round=ROUND)
    prekeys = scheme.committee.prekeys(issued) if scheme.committee else []
    for number, prekey in enumerate(prekeys):
        (frames / f"prekey-{number}.fedc").write_bytes(prekey)
    for client in range(CLIENTS):
        encryptor = scheme.encryptor(issued.client(client))
        if prekeys:
            encryptor.take_prekeys(prekeys)
        update = encryptor.encrypt(VALUES, round=ROUND)
        (frames / f"update-{client}.fedc").write_bytes(update)
        aggregator.add(update)
    for member, request in (aggregator.committee.requests() if aggregator.committee else {}).items():
        answer = scheme.committee.member(issued.client(member)).answer(request)
        (frames / f"request-{member}.fedc").write_bytes(request)
        (frames / f"answer-{member}.fedc").write_bytes(answer)
        aggregator.committee.answer(answer)
    return aggregator.finish()


def trim(folder: Path) -> None:
    """Delete all files of a large case that `large` does not keep."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in KEPT and path.parent.name != "state":
            path.unlink()


def write_roster(folder: Path) -> None:
    """Write identities, cards, a roster, its joined parties and their keys with the commands."""

    def command(*words: object) -> str:
        said = io.StringIO()
        with redirect_stdout(said):
            status = cli.main([str(word) for word in words])
        if status:
            raise SystemExit(status)
        return said.getvalue()

    for name in PARTIES:
        command("identity", name, "--out", folder / name)
    cards = [folder / name / f"{name}.card" for name in PARTIES]
    listed = folder / "server.key"
    options = ["--equal", "--bits", 12, "--clip", 1, "--set", "preset=fast"]
    options += ["--set", "corrupt_clients=0", "--set", "corrupt_members=0"]
    options += [word for name in PARTIES for word in ("--member", name)]
    said = command("roster", *cards, *options, "--out", listed)
    fingerprint = said.rpartition("fingerprint ")[2].strip()
    for name in PARTIES:
        own = folder / name / f"{name}.identity"
        command("join", own, listed, "--out", folder / name / "my.key", "--expect", fingerprint)
    for name in PARTIES:
        command("joined", folder / name / "my.key", *folder.glob("*/*.joined"))


def write_run(name: str, folder: Path) -> None:
    """Write a Flower run of two rounds: ``keys``, ``run``, the clients' ``state``, and the final model."""
    scheme = made(name)
    held = keys.save(scheme.keygen(CLIENTS), scheme, folder / "keys")
    goals = [[np.full(x.shape, 0.1 * (client + 1), x.dtype) for x in initial()] for client in range(CLIENTS)]
    with state_in(folder / "state"):
        grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, held)
        everybody = dict.fromkeys(("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"), CLIENTS)
        strategy = SecureStrategy(FedAvg(**everybody), held, out=folder / "run")
        strategy.start(grid, record(initial()), num_rounds=2)
        model = open_run(folder / "run", held / "client-0.key")
    np.savez(folder / "model.npz", **{key.replace("/", "."): value for key, value in model.items()})


def main() -> int:
    """Write a version's archive, whole or not at all."""
    from fedcipher_research.baselines.registered import pass_on

    pass_on()
    target = GOLDEN / f"{version('fedcipher')}.tar.xz"
    if target.exists():
        print(f"{target} exists; files of a version are never written again", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="fedcipher-golden-") as scratch:
        for name in cases():
            folder = Path(scratch) / "made" / name
            folder.mkdir(parents=True)
            write(name, folder)
            if large(name):
                trim(folder)
            print(name, file=sys.stderr)
        for name in runs():
            folder = Path(scratch) / "made" / f"run-{name}"
            folder.mkdir()
            write_run(name, folder)
        with state_in(Path(scratch) / "made" / "roster" / "state"):
            write_roster(Path(scratch) / "made" / "roster")
        GOLDEN.mkdir(exist_ok=True)
        draft = Path(scratch) / target.name
        with tarfile.open(draft, "w:xz") as archive:
            archive.add(Path(scratch) / "made", arcname=".", filter=bare)
        shutil.move(draft, target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
