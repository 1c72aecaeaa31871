"""docs/reference/protocol.md has a row for every field of every message.

A field without a row is a value that nobody judged.
"""

import re

import fedcipher
import numpy as np
import pytest
from fedcipher.federation import charter, query
from fedcipher.federation import messages as protocol
from fedcipher.federation.client import consent
from fedcipher.federation.records import PHASES
from fedcipher.federation.round_settings import RoundSettings
from places import ROOT
from wire_tools import payload

CORE = ROOT / "crates" / "fedcipher-core" / "src"
PROTO = ROOT / "crates" / "fedcipher-engine" / "proto"
CALLS = {"An engine's calls": "engine", "An authority's calls": "authority"}


def section(title):
    page = (ROOT / "docs" / "reference" / "protocol.md").read_text()
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(title):
    """Cells of the tables of fields under a heading, without their ticks."""
    tables = [part.splitlines() for part in section(title).split("\n\n") if part.lstrip().startswith("| field |")]
    lines = [line for lines in tables for line in lines if line.startswith("| `")]
    return [[cell.strip("` ") for cell in line.strip("|").split(" | ")] for line in lines]


def rows(title):
    """Names of these fields."""
    return {row[0] for row in table(title)}


def struct_fields(path, name):
    """Of a struct of the core."""
    body = re.split(rf"struct {name}(?:<'\w+>)? \{{", (CORE / path).read_text())[1].split("\n}")[0]
    return set(re.findall(r"^    (?:pub )?(\w+):", body, re.MULTILINE))


def header_fields():
    return struct_fields("wire.rs", "Header")


def end_fields():
    """What a frame has beside its head: in every scheme, in `oneshot`, and in two that the core builds by hand."""
    layout = (CORE / "wire.rs").read_text().split("\nuse ")[0]
    always = re.search(r"update ends with `(\w+) \d+ \| (\w+) \d+`", layout).groups()
    answers = {"answers", *(f"answers.{name}" for name in struct_fields("oneshot/answer.rs", "Answer"))}
    by_hand = {"encrypted_key", "masking", "positions", "coordinates"}
    # What is made of the others does not travel.
    body = struct_fields("oneshot/aggregate.rs", "Body") - {"signed"}
    shares = {f"sealed.{name}" for name in struct_fields("oneshot/sealed_share.rs", "SealedShare") - {"bytes"}}
    return {*always, "checksum", *body, *shares, *answers, *by_hand}


def names(module, *given):
    """The protocol's constants that are record or key names."""
    return {getattr(module, name) for name in given}


def committee_fields():
    prekey = {"prekey.signature", *(f"prekey.{name}" for name in struct_fields("oneshot/prekeys.rs", "Published"))}
    return {*names(protocol, "COMMITTEE", "REQUEST", "ANSWER", "PARTY", "PREKEY"), "who", "end", *prekey}


def proto_fields(name):
    """Of all messages of a .proto file, with a message's members of a `oneof` like any other."""
    text = re.sub(r"//.*", "", (PROTO / "fedcipher" / "v1" / f"{name}.proto").read_text())
    parts = re.split(r"^message (\w+) \{", text, flags=re.MULTILINE)[1:]
    messages = zip(parts[::2], parts[1::2], strict=True)
    return {
        f"{message}.{field}" for message, body in messages for field in re.findall(r"\b(\w+)\s*=\s*\d+\s*[;\[]", body)
    }


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("The charter", set(charter._FIELDS)),
        ("A message of a round", {*RoundSettings.__dataclass_fields__, protocol.CONFIG}),
        ("A reply", {*PHASES, *names(protocol, "UPDATE", "METRICS", "CONTEXT", "CLEAR"), "digest", "unopened", "head"}),
        ("A frame's head", header_fields()),
        ("A frame's end", end_fields()),
        ("A report", {*names(protocol, "REPORT", "EVALUATION"), "purpose", "report"}),
        ("A question for consent", {*consent._FIELDS, protocol.CONSENT, "state"}),
        ("A committee's messages", committee_fields()),
        ("A query", {*query._FIELDS, "document", "plan", "prekeys", protocol.QUERY}),
        *((title, proto_fields(name)) for title, name in CALLS.items()),
    ],
)
def test_every_field_of_every_message_has_a_row(title, fields):
    found = rows(title)
    assert fields <= found, f"docs/reference/protocol.md, {title}: no row for {sorted(fields - found)}"
    weights = {name for name in found if name.startswith("weights.")}
    assert found - weights == fields, f"rows of fields that are no more: {sorted(found - weights - fields)}"


def test_no_other_name_of_the_protocol_travels():
    """A constant of the protocol that no section covers would be a message of its own."""
    known = {"CONFIG", "METRICS", "CONTEXT", "CLEAR", "UPDATE", "REPORT", "EVALUATION", "AGGREGATE_PREFIX", "PREFIX"}
    known |= {"COMMITTEE", "REQUEST", "ANSWER", "QUERY", "REFUSED", "CONSENT"}
    found = {
        name for name, value in vars(protocol).items() if isinstance(value, str) and value.startswith("fedcipher.")
    }
    assert {name for name in found if name.isupper()} <= known


def test_every_file_of_calls_has_a_section():
    """And each of its numbered fields is found, however it is written."""
    files = {path.relative_to(PROTO).as_posix(): path.read_text() for path in PROTO.rglob("*.proto")}
    assert set(files) == {f"fedcipher/v1/{name}.proto" for name in CALLS.values()}
    for title, name in CALLS.items():
        text = re.sub(r"//.*", "", files[f"fedcipher/v1/{name}.proto"])
        assert len(proto_fields(name)) == len(re.findall(r"= *\d+", text)), title


@pytest.mark.parametrize("title", [*CALLS, "A message of a round", "A reply", "A frame's head", "A frame's end"])
def test_every_row_says_whose_word_a_field_is(title):
    """Only what passes between a host and its own engine may be `own`: a server sends none of it."""
    classes = {"charter", "checked", "harmless"} | ({"own"} if title == "An engine's calls" else set())
    assert table(title)
    assert [row for row in table(title) if len(row) != 3 or row[1] not in classes or not row[2]] == []


@pytest.mark.parametrize(("name", "before"), [("plain", 0), ("flashe", 1)])
def test_a_frame_ends_with_what_the_page_says_and_nothing_more(name, before):
    """By frames of 64 and of 128 values: what does not grow with them stands beside the ciphertext.

    In front of it `flashe` has `masking`, one byte.
    """
    pattern = r"payload ends with `([^`]+)`, an aggregate's with `([^`]+)`"
    ends = re.search(pattern, " ".join(section("A frame's end").split())).groups()
    scheme = fedcipher.scheme(name, clients=1, min_contributions=1)
    issued = scheme.keygen(1)
    sizes = []
    for number, values in enumerate((64, 128), start=1):
        update = scheme.encryptor(issued.clients[0]).encrypt([np.zeros(values, np.float32)], round=number)
        aggregator = scheme.aggregator(issued.server_key, round=number)
        aggregator.add(update)
        sizes.append([len(payload(frame)) for frame in (update, aggregator.finish())])
    beside = [2 * short - long for short, long in zip(*sizes, strict=True)]
    assert beside == [before + sum(int(size) for size in re.findall(r" (\d+)", end)) for end in ends]
