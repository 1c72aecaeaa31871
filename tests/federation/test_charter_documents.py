"""One document has one encoding: whatever says a charter or a query in other bytes is refused before it is taken."""

import json

import pytest
from attack_harness import Federation, says_nothing
from fedcipher import errors
from fedcipher.federation import canonical
from fedcipher.federation.charter import Charter
from fedcipher.federation.query import Query
from fedcipher.federation.store import Store
from fedcipher.schemes.base import state_dir
from hypothesis import given
from hypothesis import strategies as st

SWAPS = {
    "a space": (b":1,", b": 1,"),
    "a repeated field": (b'"epoch":1', b'"epoch":1,"epoch":1'),
    "a field of another case": (b'"epoch"', b'"Epoch"'),
    "an escape that is not needed": (b'"epoch"', b'"\\u0065poch"'),
    "a float for a whole number": (b'"epoch":1', b'"epoch":1.0'),
    "a whole number with an exponent": (b'"epoch":1', b'"epoch":1e0'),
    "true for a whole number": (b'"epoch":1', b'"epoch":true'),
    "a whole number beyond 64 bits": (b'"epoch":1', b'"epoch":18446744073709551617'),
    "NaN": (b'"epoch":1', b'"epoch":NaN'),
    "infinity": (b'"epoch":1', b'"epoch":Infinity'),
    "minus zero": (b'"epoch":1', b'"epoch":-0.0'),
    "a letter and its accent apart": (b'"key_set":"', b'"key_set":"e\\u0301'),
    "half a character": (b'"key_set":"', b'"key_set":"\\ud800'),
    "an unknown field": (b"{", b'{"a":1,'),
    "a comment": (b"{", b"{/**/"),
}


def variants(document):
    """Other bytes, which a lenient reader takes for the same or for a similar document."""
    said = json.loads(document)
    yield "a line's end", document + b"\n"
    yield "a mark of byte order", b"\xef\xbb\xbf" + document
    yield "indented", json.dumps(said, sort_keys=True, indent=1).encode()
    yield "keys in another order", json.dumps(dict(reversed(said.items())), separators=(",", ":")).encode()
    yield "UTF-16", document.decode().encode("utf-16")
    yield "without a field", json.dumps({k: v for k, v in said.items() if k != "epoch"}, sort_keys=True).encode()
    yield "in a list", b"[" + document + b"]"
    yield "nothing", b""
    for what, (old, new) in SWAPS.items():
        assert old in document, what
        yield what, document.replace(old, new, 1)


@pytest.fixture
def federation(tmp_path, rng):
    return Federation(tmp_path, "flashe", rng)


def test_a_charter_in_other_bytes_is_refused_and_no_client_takes_part(federation):
    charter = federation.make_charter(epoch=1)
    document = charter.encode()
    assert Charter.decode(document).encode() == document
    store = Store(state_dir(), f"{charter.key_set}-0")
    for what, content in variants(document):
        with pytest.raises(errors.CharterError):
            Charter.decode(content)
        settings = federation.settings(charter=charter, document=content)
        assert says_nothing(federation.send(federation.content(settings))), what
        with store.locked():
            assert store.accepted() is None, what
    assert not federation.send(federation.content(federation.settings(charter=charter))).has_error()


def test_a_query_in_other_bytes_is_refused(federation):
    answers = [{"name": "n", "length": 0, "resolution": 1.0, "largest": 5.0, "how": "sum"}]
    said = {"fedcipher_query": 1, "round": 7, "key_set": "00", "epoch": 1, "scheme": {}, "type": "query", "asked": {}}
    document = canonical.encode({**said, "answers": answers})
    query = Query.decode(document)
    assert query.encode() == document
    for what, content in variants(document):
        with pytest.raises(errors.CharterError):
            Query.decode(content)
            pytest.fail(what)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(PLAIN, st.data())
def test_what_decodes_is_what_was_encoded_to_the_byte(document, data):
    try:
        content = canonical.encode(document)
    except errors.CharterError:
        # -0.0, or a text that is not in Unicode's form NFC.
        return
    assert canonical.encode(canonical.decode(content)) == content
    place = data.draw(st.integers(0, len(content) - 1))
    other = content[:place] + data.draw(st.binary(min_size=1, max_size=2)) + content[place + 1 :]
    try:
        again = canonical.decode(other)
    except errors.CharterError:
        return
    # Another document, or the same bytes: never a second spelling.
    assert canonical.encode(again) == other
