"""Which schemes a test is about, by what they can do: each list here is a part of `fedcipher.schemes.every_scheme`.

``schemes_that(hides, one_key)`` are the schemes that hide updates and whose clients share a key. A new scheme is in
each list that its capabilities put it in. What a build or a machine does not have is skipped, with what is missing.
"""

import pytest
from fedcipher import _native
from fedcipher._optional import missing
from fedcipher.schemes import every_scheme, scheme_class


def hides(variant):
    """Not a yardstick."""
    return variant.info.hides


def one_key(variant):
    """Clients share a key, so that one of them, or an opener, opens sums alone."""
    return not variant.info.committee


def committee(variant):
    """A sum takes the answers of a committee."""
    return variant.info.committee


def adds(variant):
    """A sum is additions only. Of others a round takes seconds to minutes."""
    return not variant.info.workers


def works(variant):
    """A sum is work."""
    return variant.info.workers


def in_core(variant):
    """An engine can hold its keys."""
    return variant.in_core


def widths(variant):
    """Values of fewer bits have narrower lanes."""
    return variant.info.widths


def one_width(variant):
    """All values of a frame have lanes of one width."""
    return not variant.info.widths


def dense(variant):
    """Clients send all coordinates."""
    return not variant.sparse


def sparse(variant):
    """Each client chooses its own coordinates."""
    return variant.sparse


def stands(variant):
    """One variant for each scheme, where a test takes long and parameters make no difference to what it tries."""
    return variant.first


def ways_to_open(variant):
    """One variant for each scheme, and those whose sums the server opens."""
    return stands(variant) or variant.params.get("reveal") == "server"


def quick(variant):
    """All variants of schemes whose sums are additions; of others, whose rounds take long, the first."""
    return adds(variant) or stands(variant)


def variants_that(*wanted, long=None, among=every_scheme):
    """Parameters of a test, one for each variant that all of ``wanted`` hold of; where ``long`` holds it is marked."""
    found = [variant for variant in among() if all(want(variant) for want in wanted)]
    return [pytest.param(variant, id=variant.name, marks=_marks(variant, long)) for variant in found]


def schemes_that(*wanted, **given):
    """As `variants_that`, for tests that take the name of a scheme: one for each scheme."""
    return [pytest.param(p.id, id=p.id, marks=p.marks) for p in variants_that(*wanted, stands, **given)]


def schemes_and_params(*wanted, **given):
    """As `variants_that`, for tests that take the name of a scheme and its parameters."""
    return [
        pytest.param(p.values[0].scheme.name, dict(p.values[0].params), id=p.id, marks=p.marks)
        for p in variants_that(*wanted, **given)
    ]


def one_of_each_kind_of_key(*wanted):
    """The first scheme whose clients share a key and the first with a committee, for tests of that difference alone."""
    return [
        kind[0] for kind in (schemes_that(*wanted, hides, one_key), schemes_that(*wanted, hides, committee)) if kind
    ]


def of_committee(name, **params):
    """``params`` where the scheme has a committee, which they are of; else none."""
    return params if scheme_class(name).info.committee else {}


def params_of(name, **instead):
    """The parameters of the scheme's first variant, which fit three clients; ``instead`` replaces some."""
    (variant,) = (variant for variant in every_scheme() if variant.name == name)
    return {**variant.params, **instead}


def _marks(variant, long):
    absent = missing(*variant.info.packages)
    marks = [pytest.mark.skip(reason=f"not installed: {', '.join(absent)}")] if absent else []
    if variant.info.feature and variant.info.feature not in _native.features:
        marks.append(pytest.mark.skip(reason=f"not in this build: {variant.info.feature}"))
    return [*marks, pytest.mark.long] if long and long(variant) else marks
