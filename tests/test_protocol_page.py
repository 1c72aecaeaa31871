"""docs/protocol.md has a row for every field of every message: a field without one is a value that nobody judged."""

import re
from pathlib import Path

import pytest
from fedcipher.federation import charter, query
from fedcipher.flower import analytics, committee, protocol, reports
from fedcipher.flower.records import PHASES
from fedcipher.flower.settings import RoundSettings

ROOT = Path(__file__).resolve().parents[1]


def rows(title):
    """First cells of the tables under a heading."""
    page = (ROOT / "docs" / "protocol.md").read_text()
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    return {match for line in section.splitlines() for match in re.findall(r"^\| `([^`]+)` \|", line)}


def header_fields():
    """Of a frame, as the core's struct has them."""
    wire = (ROOT / "crates" / "fedcipher-core" / "src" / "wire.rs").read_text()
    body = wire.split("pub struct Header {")[1].split("\n}")[0]
    return set(re.findall(r"^\s+pub (\w+):", body, re.MULTILINE))


def names(module, *given):
    """The protocol's constants that are record or key names."""
    return {getattr(module, name) for name in given}


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("The charter", set(charter._FIELDS)),
        ("A message of a round", {*RoundSettings.__dataclass_fields__, protocol.CONFIG}),
        ("A reply", {*PHASES, *names(protocol, "UPDATE", "METRICS", "CONTEXT", "CLEAR"), "digest", "unopened"}),
        ("A frame's head", header_fields()),
        ("A report", {*names(protocol, "REPORT", "EVALUATION"), *names(reports, "_PURPOSE", "_REPORT")}),
        ("A committee's messages", {*names(committee, "_RECORD", "_REQUEST", "_ANSWER", "_PARTY"), "who"}),
        ("A query", {*query._FIELDS, "document", "plan", analytics.QUERY}),
    ],
)
def test_every_field_of_every_message_has_a_row(title, fields):
    found = rows(title)
    assert fields <= found, f"docs/protocol.md, {title}: no row for {sorted(fields - found)}"
    weights = {name for name in found if name.startswith("weights.")}
    assert found - weights == fields, f"rows of fields that are no more: {sorted(found - weights - fields)}"


def test_no_other_name_of_the_protocol_travels():
    """A constant of the protocol that no section covers would be a message of its own."""
    known = {"CONFIG", "METRICS", "CONTEXT", "CLEAR", "UPDATE", "REPORT", "EVALUATION", "AGGREGATE_PREFIX", "PREFIX"}
    found = {
        name for name, value in vars(protocol).items() if isinstance(value, str) and value.startswith("fedcipher.")
    }
    assert {name for name in found if name.isupper()} <= known
