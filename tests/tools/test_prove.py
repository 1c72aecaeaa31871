"""The proofs of `make prove` are of the code as it is, and see what is wrong."""

import sys

import fedcipher
import pytest
from places import ROOT

z3 = pytest.importorskip("z3")
sys.path.append(str(ROOT / "tools"))
import prove

CODEC = fedcipher.Codec(bits=12, clip=0.5)


def test_no_committee_that_is_taken_can_be_split():
    assert prove.split(prove.committee_rule()) is None


@pytest.mark.parametrize(
    ("what", "weaker"),
    [
        ("members + corrupt_members < 2 * threshold", "members + corrupt_members < 2 * (threshold + pack - 1)"),
        ("members + corrupt_members < 2 * threshold", "members + corrupt_members < 2 * threshold + pack - 1"),
        ("members + corrupt_members < 2 * threshold", "members + corrupt_members < 2 * threshold + 1"),
        ("members + corrupt_members < 2 * threshold", "members < 2 * threshold"),
        ("threshold + pack <= members + 1", "threshold + pack <= members + 2"),
        ("1 <= pack", "0 <= pack"),
    ],
    ids=["attack 21", "needed + threshold", "one less", "nobody corrupt", "never enough", "nothing packed"],
)
def test_a_weaker_rule_is_refuted(what, weaker):
    rule = prove.committee_rule()
    assert rule.count(what) == 1
    assert prove.split(rule.replace(what, weaker)) is not None


def test_the_rule_that_is_proved_is_the_codes():
    rule = prove.committee_rule()
    tried = [(m, t, c, p) for m in range(1, 7) for t in range(1, 8) for c in range(4) for p in range(1, 4)]
    for members, threshold, corrupt, pack in tried:
        options = {"members": members, "threshold": threshold, "corrupt_members": corrupt, "pack": pack}
        try:
            fedcipher.scheme("oneshot", clients=9, min_contributions=5, codec=CODEC, preset="fast", **options)
            taken = True
        except fedcipher.errors.ParameterError:
            taken = False
        assert taken == prove.holds(rule, **options), options


@pytest.mark.parametrize("preset", ["compact", "fast"])
@pytest.mark.parametrize("name", ["bfv", "oneshot"])
def test_sums_come_back_and_one_thing_changed_is_seen(name, preset):
    made = fedcipher.scheme(name, clients=100, codec=CODEC, preset=preset)
    about, most = made.describe(), made.levels.of(12)
    assert prove.wrong_sum(about, 12, 100, most) is None
    changed = [
        {"largest error": str(int(about["delta"]) // 200)},
        {"bits dropped": str(int(about["bits dropped"]) + 1)},
        {"t": str(2 * int(about["t"]))},
        {"wire bits up": str(int(about["wire bits up"]) - 1)},
    ]
    for change in changed:
        assert prove.wrong_sum(about | change, 12, 100, most) is not None, change
    assert prove.wrong_sum(about, 12, 100, 2 * most) is not None
    assert prove.wrong_sum(about, 12, 200, most) is not None


def test_shares_come_back_and_one_client_too_many_is_seen():
    about = fedcipher.scheme("oneshot", clients=97, codec=CODEC).describe()
    p, error = int(about["shares modulo"]), int(about["largest error"])
    assert prove.wrong_share(p, error, 97) is None
    assert prove.wrong_share(p, error, p // (2 * error) + 1) is not None
    assert prove.wrong_share(2**31 + 11, error, 97) is not None
