"""What names a scheme with its parameters, in every key and frame: a second implementation, and what it must stay."""

from hashlib import sha256

import fedcipher
import pytest
from fedcipher import Codec
from fedcipher.dp import Privacy
from oneshot_bytes import RINGS, canonical

PRIVACY = Privacy(clip=1.0, noise_multiplier=0.75, rounds=5, delta=1e-5)
BFV_PRIMES = {"compact": RINGS["compact"][1], "fast": RINGS["fast"][1]}


def bounds(spec):
    params, privacy = spec["params"], spec["codec"].get("privacy")
    numbers = (params["clients"], params["max_weight"], params["min_contributions"])
    if privacy is None:
        return canonical("fedcipher bounds", *numbers)
    said = canonical("fedcipher privacy", *(privacy[name] for name in ("clip", "noise_multiplier", "rounds", "delta")))
    return canonical("fedcipher bounds", *numbers, sha256(said).digest())


def widths(spec):
    return list(fedcipher.Codec(**{k: v for k, v in spec["codec"].items() if k == "bits"}).bit_widths)


def plain(spec):
    return canonical("fedcipher scheme plain", bounds(spec))


def flashe(spec):
    params = spec["params"]
    masking = {"adaptive": 0, "single": 1, "double": 2}[params["masking"]]
    top = [] if params["per_client_top"] is None else [params["per_client_top"], 2]
    return canonical("fedcipher scheme flashe", bounds(spec), masking, params["key_bits"], *top)


def bfv(spec):
    params = spec["params"]
    preset = {"compact": 1, "fast": 2}[params["preset"]]
    primes = [int(prime) for prime in BFV_PRIMES[params["preset"]]]
    weights = int(params["server_weights"])
    return canonical("fedcipher scheme bfv", bounds(spec), preset, widths(spec), weights, primes)


KNOWN = [
    ("plain", Codec(bits=16), {}, plain, "62a57ba2558b78c13262c75cf8a205ea"),
    ("plain", Codec(bits=20, privacy=PRIVACY), {}, plain, "7ce75820e8bed9d97fd81dcd21a21379"),
    ("flashe", Codec(bits=16), {}, flashe, "b7311a5028f7d6839174cac43b207ce5"),
    (
        "flashe",
        Codec(bits="auto"),
        {"masking": "adaptive", "key_bits": 256, "max_weight": 9},
        flashe,
        "f77ec5c981ca053823cb2c08e195356d",
    ),
    ("flashe", Codec(bits=16), {"per_client_top": 0.1}, flashe, "f3822b2ee19f1a7f16039c4535b73602"),
    ("bfv", Codec(bits=12), {}, bfv, "8036dd7b8d6acf19dfff7066cc570d45"),
    (
        "bfv",
        Codec(bits=[8, 12]),
        {"preset": "fast", "server_weights": True, "max_weight": 3},
        bfv,
        "c0bcf6e0452002837026d1b0c3f28a07",
    ),
]


@pytest.mark.parametrize(("name", "codec", "params", "encoded", "known"), KNOWN)
def test_the_digest_of_parameters_is_of_their_encoding(name, codec, params, encoded, known):
    scheme = fedcipher.scheme(name, clients=4, codec=codec, **params)
    made = scheme.keygen(4).client(0).params
    assert made == sha256(encoded(scheme.spec())).digest()[:16]
    # For ever: keys and frames have it.
    assert made.hex() == known
