"""Schemes to compare with: Paillier, SEAL's BFV and CKKS, TFHE. Do not use them for real data.

Fedcipher does not register these schemes. `fedcipher_research.baselines.registered` registers them, and
``fedcipher-research`` imports that module.
"""

from fedcipher_research.baselines.paillier import Paillier
from fedcipher_research.baselines.seal import BfvLib, Ckks
from fedcipher_research.baselines.tfhe import Tfhe

__all__ = ["BASELINES", "QUICK", "BfvLib", "Ckks", "Paillier", "Tfhe"]

BASELINES = (Paillier, BfvLib, Ckks, Tfhe)
QUICK = tuple(cls for cls in BASELINES if cls is not Tfhe)
"""The baselines without TFHE, which takes more than a minute for 100 values of 12 clients."""
