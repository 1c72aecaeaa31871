"""The published measurements: the cases that repeat them, and the figures to compare with.

All published figures come from `fedcipher_research.published`.
"""

from __future__ import annotations

from collections.abc import Callable

from fedcipher.bench.case import Case
from fedcipher.errors import ParameterError

from fedcipher_research.bench.comparison import Comparison, per, ratio, total
from fedcipher_research.bench.fedbit import fedbit_table1
from fedcipher_research.bench.preset import Preset
from fedcipher_research.published import Published, cell, claim, doubt, figure

__all__ = ["preset", "preset_names"]

_KB, _MB = 1 << 10, 1e6
"""FLASHE's KB are 1,024 bytes (its plaintext column has 20 bits a value). Other papers do not define their units."""


_PHASES = {"encryption": "encrypt", "operation": "operate", "decryption": "decrypt"}
_NO_DEGREE = "the slides give no ring degree"
_FIRST, _SECOND = "slide: key results, scenario 1", "slide: key results, scenario 2"


def _phe_vs_fhe() -> Preset:
    clients, bfv = 16, "BFV (SEAL)"
    cases = [
        Case("Paillier 2048", "paillier", 1, clients, params={"packing": "none"}),
        Case("Paillier 3072", "paillier", 1, clients, params={"packing": "none", "key_bits": 3072}),
        Case(bfv, "bfv-lib", 1, clients),
        Case("BFV (SEAL), 4,096 values", "bfv-lib", 4096, clients),
        Case("CKKS (SEAL)", "ckks", 1, clients),
        Case("TFHE", "tfhe", 1, clients),
        Case("BFV (ours)", "bfv", 1, clients),
        Case("FLASHE (ours)", "flashe", 1, clients),
    ]
    rounded = (doubt("resource-study", "Encryption factor 488x"),)
    key = "the slides give no key length, nor whose integers: paillier-python has three of one and two of the other"
    comparisons: list[Comparison] = []
    for phase, ours in _PHASES.items():

        def printed(column: str, unit: str, phase: str = phase) -> Published:
            return cell("resource-study", _FIRST, {"phase": phase}, column, unit)

        for paillier in ("Paillier 2048", "Paillier 3072"):
            comparisons += [
                Comparison(f"{paillier}: {phase}", printed("Paillier", "s"), per(ours, paillier, 1), because=key),
                Comparison(
                    f"{bfv} over {paillier}: {phase} faster",
                    printed("printed factor", "x"),
                    ratio(ours, paillier, bfv),
                    "larger",
                    because=key,
                    doubts=rounded if phase == "encryption" else (),
                ),
            ]
        comparisons.append(Comparison(f"{bfv}: {phase}", printed("BFV", "s"), per(ours, bfv, 1), because=_NO_DEGREE))
    return Preset(
        "phe-vs-fhe",
        "16 ciphertexts, 16 additions: a value each from 16 clients, one sum",
        "the resource study, key results of scenario 1",
        [
            "the slides give no key length for this scenario (4,096 bits stand under the other one), no ring degree "
            "and no moduli: Paillier is measured with two lengths, BFV with SEAL's defaults at N = 4096",
            "the study names Python-Paillier and TenSEAL, as here, and not whether gmpy2 was there; here it is",
            "two virtual machines of 2 CPUs there; two processes of one machine here",
        ],
        cases,
        comparisons,
    )


def _fhe() -> Preset:
    clients, sums = 32, 16
    names = {"BFV": "BFV (SEAL)", "CKKS": "CKKS (SEAL)", "TFHE": "TFHE"}
    unclear = doubt("resource-study", "Operation time per addition")
    traffic = doubt("resource-study", "879.54 MB over 512 ciphertexts")
    tiny = doubt("resource-study", "TFHE memory of 0.26")
    other_tfhe = "the slides use Concrete on 0 to 2^7, this is tfhe-rs on values of 12 bits"
    reading = "the slides do not state what 32 additions are, nor how many results are decrypted"
    comparisons: list[Comparison] = []
    for scheme, label in names.items():
        for phase, ours in _PHASES.items():
            because = other_tfhe if scheme == "TFHE" else _NO_DEGREE if phase == "encryption" else reading
            printed = cell("resource-study", _SECOND, {"phase": phase}, scheme)
            doubts = () if phase == "encryption" else (unclear,)
            comparisons.append(
                Comparison(f"{label}: {phase}", printed, per(ours, label, 1), because=because, doubts=doubts)
            )
        for resource, measured, because, doubts in (
            ("client memory", per("client memory", label, _MB), _NO_DEGREE, ()),
            ("server memory", per("server memory", label, _MB), _NO_DEGREE, ()),
            ("bandwidth", total(label, _MB, "bytes up", "bytes down"), _NO_DEGREE, (traffic,)),
        ):
            comparisons.append(
                Comparison(
                    f"{label}: {resource}",
                    cell("resource-study", "slide: resource consumption", {"resource": resource}, scheme),
                    measured,
                    because=other_tfhe if scheme == "TFHE" else because,
                    doubts=(tiny,) if scheme == "TFHE" and "memory" in resource else doubts,
                )
            )
    return Preset(
        "fhe",
        "512 ciphertexts, 32 additions: 16 sums of a value each from 32 clients",
        "the resource study, key results of scenario 2 and resource consumption",
        [
            "512 ciphertexts are read here as 16 sums of 32; the keys are loaded for each sum",
            "TFHE here is tfhe-rs; Concrete, in an environment of its own, has a report of its own, tfhe-concrete",
            "memory here is the peak of a process, Python and its libraries included",
        ],
        [
            *(Case(names[s], k, 1, clients, sums=sums) for s, k in (("BFV", "bfv-lib"), ("CKKS", "ckks"))),
            Case("TFHE", "tfhe", 1, clients, sums=sums),
            Case("BFV (ours)", "bfv", 1, clients, sums=sums),
            Case("FLASHE (ours)", "flashe", 1, clients, sums=sums),
        ],
        comparisons,
    )


# Our cases by the paper's names, and why a library's figures are not comparable.
_FLASHE = {
    "Pai+bat": ("Paillier batched", "paillier", ""),
    "FV+bat": (
        "BFV (SEAL)",
        "bfv-lib",
        "N = 8192 and t = 1964769281 there; SEAL's defaults at N = 4096 and a modulus made for the sum here",
    ),
    "CKKS+bat": (
        "CKKS (SEAL)",
        "ckks",
        "N = 8192 and a scale of 2^40 at both, but coeff_mod_bit_sizes None there and 60, 40, 60 here",
    ),
    "FLASHE": ("FLASHE (ours)", "flashe", ""),
}
_FLASHE_SIZES = (16_384, 65_536, 262_144)


def _flashe_table2() -> Preset:
    clients = 10
    cases: list[Case] = []
    comparisons: list[Comparison] = []
    head_room = (doubt("flashe", "Table 2 plaintext sizes are 20 bits"),)
    for values in _FLASHE_SIZES:
        for scheme, (name, kind, because) in _FLASHE.items():
            label, row = f"{name}, {values:,}", {"numbers": values, "scheme": scheme}
            cases.append(Case(label, kind, values, clients, bits=16))
            size = cell("flashe", "Table 2", row, "ciphertext_size")
            bytes_of = {"KB": _KB, "MB": _KB * _KB}[size.unit]
            for what, printed, ours, doubts in (
                ("encryption, one client", "encryption_s", per("encrypt", label, clients), ()),
                ("decryption", "decryption_s", per("decrypt", label, 1), ()),
                ("addition of ten", "addition_s", per("operate", label, 1), ()),
                ("ciphertext", "ciphertext_size", per("one update", label, bytes_of), head_room),
            ):
                found = cell("flashe", "Table 2", row, printed)
                comparisons.append(Comparison(f"{label}: {what}", found, ours, because=because, doubts=doubts))
    label, values = "Paillier, a ciphertext a value, 256", 256
    cases.append(Case(label, "paillier", values, clients, bits=16, params={"packing": "none"}))
    most = _FLASHE_SIZES[0]
    comparisons.append(
        Comparison(
            f"{label}: encryption of {most:,}, one client",
            cell("flashe", "Table 2", {"numbers": most, "scheme": "Pai"}, "encryption_s"),
            per("encrypt", label, clients * values / most),
        )
    )
    return Preset(
        "flashe-table2",
        "16,384, 65,536 and 262,144 values of 16 bits, 10 clients",
        "FLASHE, Table 2, section 2.2: Homomorphic Encryption",
        [
            "an AWS c5.4xlarge of 16 vCPU there; FLASHE is Python over PyCryptodome there and Rust here",
            f"Paillier without packing is measured on {values} values and scaled to {most:,}",
            "addition here holds whatever the server does with ten frames: reading, checking, adding",
        ],
        cases,
        comparisons,
    )


def _hhe_table() -> Preset:
    # The published set-up has int8 parameters and four of twelve clients in a round.
    pasta, bfv, plain = "PASTA and BFV", "BFV (SEAL)", "plain"
    clients, sums = 4, 2
    updates = clients * sums
    library = doubt("hybrid-he", "'PASTA speeds up decryption'")
    slots = "N = 16384 there, 4096 here"

    def printed(table: str, operation: str, column: str) -> Published:
        return cell("hybrid-he", table, {"operation": operation}, column, "s")

    return Preset(
        "hhe-table",
        "8,000 parameters of 8 bits; 4 clients a round, two rounds (keys are sent in the first)",
        "the hybrid-HE study, Fig. 7a, Fig. 7b and Fig. 6a, section 6.3: Experimental Results and Analysis",
        [
            "the study does not name PASTA's variant; PASTA-4 here",
            "no bytes are printed in the study, only ratios",
            "transciphering here covers all blocks at once (docs/explanation/hybrid.md); the server's figure"
            " includes the addition",
        ],
        [
            Case(pasta, "pasta-bfv", 8000, clients, sums=sums, bits=8),
            Case(bfv, "bfv-lib", 8000, clients, sums=sums, bits=8),
            Case(plain, "plain", 8000, clients, sums=sums, bits=8),
        ],
        [
            Comparison(
                "transciphering of 8,000 parameters, one client",
                printed("Fig. 7b", "HESD per client", "PASTA+BFV"),
                per("operate", pasta, updates),
            ),
            Comparison(
                "server, a round of four clients",
                printed("Fig. 7b", "Total runtime", "PASTA+BFV"),
                per("operate", pasta, sums),
            ),
            Comparison(
                "server, a round of four clients, BFV",
                printed("Fig. 7b", "Total runtime", "BFV"),
                per("operate", bfv, sums),
                because=slots,
            ),
            Comparison(
                "encryption on the client",
                printed("Fig. 7a", "Encryption", "PASTA+BFV"),
                per("encrypt", pasta, updates),
            ),
            Comparison(
                "decryption on the client",
                printed("Fig. 7a", "Decryption", "PASTA+BFV"),
                per("decrypt", pasta, sums),
                doubts=(library,),
            ),
            Comparison(
                "encryption on the client, BFV",
                printed("Fig. 7a", "Encryption", "BFV"),
                per("encrypt", bfv, updates),
                because=slots,
            ),
            Comparison(
                "decryption on the client, BFV",
                printed("Fig. 7a", "Decryption", "BFV"),
                per("decrypt", bfv, sums),
                because=slots,
                doubts=(library,),
            ),
            Comparison(
                "upload smaller than BFV's, once keys are there",
                figure("hybrid-he", "Fig. 6a", "BFV upload over PASTA+BFV upload, more than"),
                ratio("one update", bfv, pasta),
                "larger",
                doubts=(doubt("hybrid-he", "The BFV-encrypted PASTA key"),),
                bound="over",
            ),
            Comparison(
                "server's work beside BFV's",
                claim("hybrid-he", "server cost increase per training client"),
                ratio("operate", pasta, bfv),
                because="BFV there at N = 16384, here at 4096; a round of four clients here",
                doubts=(doubt("hybrid-he", "15621x is"),),
            ),
        ],
    )


_PRESETS: dict[str, Callable[[], Preset]] = {
    "phe-vs-fhe": _phe_vs_fhe,
    "fhe": _fhe,
    "flashe-table2": _flashe_table2,
    "fedbit-table1": fedbit_table1,
    "hhe-table": _hhe_table,
}


def preset_names() -> list[str]:
    """The names of all presets."""
    return list(_PRESETS)


def preset(name: str) -> Preset:
    """The preset with this name. Raises `ParameterError`."""
    if name not in _PRESETS:
        raise ParameterError(f"preset {name!r} is not one of {', '.join(_PRESETS)}")
    return _PRESETS[name]()
