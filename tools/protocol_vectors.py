"""Makes the vectors of docs/reference/protocol.md, "`oneshot` in bytes": a round whose frames all follow from seeds.

python tools/protocol_vectors.py           writes tests/vectors/oneshot.json
python tools/protocol_vectors.py --check   makes the vectors again, and compares them with the file

The vectors come from the second implementation in tests/, with kyber-py and dilithium-py, whose random bytes can be
chosen. The product draws from the operating system, so it cannot make vectors. In
tests/schemes/test_protocol_second.py it reads them.
"""

from __future__ import annotations

import base64
import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import oneshot_bytes as b
import oneshot_reference as ref

PATH = ROOT / "tests" / "vectors" / "oneshot.json"
PARAMS = {
    "clients": 3,
    "max_weight": 2,
    "min_contributions": 3,
    "preset": "fast",
    "members": 4,
    "threshold": 3,
    "corrupt_clients": 1,
    "corrupt_members": 1,
    "pack": 1,
    "reveal": "clients",
    "prekey_rounds": 1,
    "prekey_hours": 24,
}
SPEC = {"scheme": "oneshot", "params": PARAMS, "codec": {"bits": 12}}
ROLES = [3, 7, 1, 2, 6]
"""The roles of parties 10, 20, ...: three clients, four members, two readers."""
ROUND, MODEL, MEMORY, BOUND = 9, b"the model", b"\1the memory", b"the bound"
TENSORS = ((1, 12, 1.0, (2, 150)), (1, 12, 1.0, (7,)), (12, 2, 1.0, (5,)))


class Noted(b.Identity):
    """An identity that records the messages it signs."""

    def __init__(self, secret: bytes, chance: b.Seeded, said: list[dict[str, Any]], number: int) -> None:
        super().__init__(secret, chance)
        self._said, self._number = said, number

    def sign(self, purpose: str, message: bytes) -> bytes:
        """Sign like an identity, and record the message."""
        self._said.append({"party": self._number, "purpose": purpose, "message": message})
        return super().sign(purpose, message)


def chance(what: str) -> b.Seeded:
    return b.Seeded(sha256(f"vectors of oneshot: {what}".encode()).digest())


class Round:
    """All parties of the round, and their frames."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self.params = b.Params.of(SPEC)
        numbers = range(10, 60, 10)
        self.identities = {
            n: Noted(chance(f"identity {n}").bytes(64), chance(f"party {n}"), self.said, n) for n in numbers
        }
        parties = [
            b.Member(n, f"party {n}", roles, self.identities[n].verify, self.identities[n].seal.public)
            for n, roles in zip(numbers, ROLES, strict=True)
        ]
        self.place = ref.Place(self.params, b.Roster.make(chance("roster"), parties))
        self.layout = b.Layout(TENSORS)
        self.members = {
            m.id: ref.CommitteeMember(self.place, self.identities[m.id]) for m in self.place.roster.members()
        }
        self.frames: list[dict[str, Any]] = []

    def note(self, what: str, party: int, frame: bytes) -> bytes:
        self.frames.append({"what": what, "party": party, "frame": frame})
        return frame

    def values(self, client: int) -> list[int]:
        made = []
        for bits, _, count in self.layout.segments():
            most = self.params.largest(bits)
            made += [(client * 7919 + 104729 * k) % (most + 1) for k in range(count)]
        return made

    def run(self) -> dict[str, Any]:
        place, members = self.place, self.members
        for number, identity in self.identities.items():
            self.said.append({"party": number, "purpose": "roster", "signature": place.joined_signature(identity)})
        self.note("client key", 20, place.client_key(self.identities[20]))
        self.note("server key", 0, place.server_key())
        prekeys = [self.note("prekey", n, member.prekey(1000 + n)) for n, member in members.items()]
        secrets = {n: member.prekeys[1000 + n][0].secret for n, member in members.items()}
        clients = [p.id for p in place.roster.parties if p.client]
        server = ref.Server(place, ROUND)
        server.take_prekeys(prekeys)
        for client in clients:
            server.add(self.note("update", client, self.update(client, prekeys)))
        spoilt = self.update(clients[-1], prekeys, (1,))
        shares = list(self.shares(server, secrets))
        self.exchange(server)
        self.exchange(server)
        self.note("aggregate", 0, server.finish())
        self.complaint(clients, prekeys, spoilt)
        return self.said_of(server, secrets, shares)

    def update(self, client: int, prekeys: list[bytes], spoilt: tuple[int, ...] = ()) -> bytes:
        sender = ref.Client(self.place, self.identities[client])
        sender.take_prekeys(prekeys)
        terms = {"weight": 1 + client // 10 % 2, "model": MODEL, "memory": MEMORY, "bound": BOUND}
        return sender.encrypt(self.layout, self.values(client), ROUND, spoilt=spoilt, **terms)

    def exchange(self, server: ref.Server) -> None:
        what = ("request", "answer") if server.agreed else ("proposal", "agreement")
        requests = server.requests()
        for number, frame in requests.items():
            server.answer(self.note(what[1], number, self.members[number].answer(frame)))
        # All members get the same proposal. Requests differ in the length of shares.
        for number in {"proposal": [10], "request": [10, 50]}[what[0]]:
            self.note(what[0], number, requests[number])

    def complaint(self, clients: list[int], prekeys: list[bytes], spoilt: bytes) -> None:
        """The last client sends the second member a false share. This server has got that update."""
        server, frames = ref.Server(self.place, ROUND), self.found("update")[:-1]
        server.take_prekeys(prekeys)
        for frame in [*frames, self.note("spoilt update", clients[-1], spoilt)]:
            server.add(frame)
        server.requests()
        for frame in self.found("agreement"):
            server.answer(frame)
        number = [m.id for m in self.place.roster.members()][1]
        frame = self.note("complaint", number, self.members[number].answer(server.requests()[number]))
        server.answer(frame)

    def found(self, what: str) -> list[bytes]:
        return [one["frame"] for one in self.frames if one["what"] == what]

    def shares(self, server: ref.Server, secrets: dict[int, bytes]) -> Any:
        """All values that make up each share, by client and member."""
        context = server._context()
        for client, kept in server.kept.items():
            for share, member in zip(kept.shares, self.place.roster.members(), strict=True):
                info = context.share_info(client, member.id, share.number)
                shared = b.Seal(secrets[member.id]).shared(share.encapped)
                x = b.exported(shared, info)
                data = context.share_data(kept.asked.one, kept.asked.tag, kept.asked.digests[:32])
                words = {"shared": shared, "info": info, "x": x, "data": data, "share": share.opened(x, data)}
                yield {"client": client, "member": member.id, "number": share.number, **words}

    def said_of(self, server: ref.Server, secrets: dict[int, bytes], shares: list[dict[str, Any]]) -> dict[str, Any]:
        place, params = self.place, self.params
        context, first = server._context(), next(iter(self.identities.values()))
        _, root, mac = place.own(first)
        words, noise, pad = mac.round(server.head, BOUND)
        tags = [{"client": c, "tag": k.asked.tag, "pad of the root": pad(k.asked.one)} for c, k in server.kept.items()]
        rows, factor = context.combinations(params, server.kept[min(server.kept)].asked)
        _, sums, wrong = ref.ReadingParty(place, self.identities[20]).open(
            self.found("aggregate")[0], ROUND, bound=BOUND
        )
        assert not wrong
        return {
            "spec": SPEC,
            "encoded": params.encoded(),
            "parameters": params.digest(),
            "round": {"round": ROUND, "model": MODEL, "memory": MEMORY, "bound": BOUND, "epoch": place.epoch},
            "tensors": TENSORS,
            "identities": {str(n): i.content for n, i in self.identities.items()},
            "prekeys": {str(n): secret for n, secret in secrets.items()},
            "roster": {
                "digest": place.digest,
                "fingerprint": place.roster.fingerprint(params, place.epoch),
                "root": root,
                "digest of the root": place.roster.root,
            },
            "context": {
                "common": context.common,
                "bytes": context.to_bytes(),
                "seed": context.seed(),
                "a": b.public_polynomial(params, context.seed(), 0)[:8],
                "model": context.model,
                "memory": context.memory,
                "memory id": b.memory_id(MEMORY),
                "r of words": words,
                "r of noise": noise,
                "combinations": [int(x) for x in rows[0][:8]],
                "combination of pads": factor,
            },
            "values": {str(c): self.values(c) for c in server.kept},
            "tags": tags,
            "sums": sums,
            "shares": shares,
            "signed": self.said,
            "frames": self.frames,
        }


def plain(value: Any) -> Any:
    """A value as JSON: bytes in base64, numbers beyond 2^53 as decimal digits."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, int) and abs(value) >= 1 << 53 else value


def lines(value: dict[str, Any]) -> str:
    """JSON with a line for each entry of the outer lists."""
    parts = []
    for key, inner in value.items():
        text = json.dumps(inner)
        if isinstance(inner, list) and inner and isinstance(inner[0], dict):
            text = "[\n" + ",\n".join(json.dumps(one) for one in inner) + "\n]"
        parts.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def made() -> str:
    """The text of the file with all vectors."""
    return lines(plain(Round().run()))


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        same = PATH.read_text() == made()
        print(f"{PATH.relative_to(ROOT)} {'agrees' if same else 'does not agree'} with its seeds")
        sys.exit(not same)
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(made())
    print(f"wrote {PATH.relative_to(ROOT)}, {PATH.stat().st_size:,} bytes")
