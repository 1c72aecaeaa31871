"""The schemes to compare with: Paillier, SEAL's BFV and CKKS, TFHE. They are not meant for service.

Fedcipher does not know them by itself. `fedcipher_research.baselines.registered` registers them, and
``fedcipher-research`` imports that.
"""

from fedcipher_research.baselines.paillier import Paillier
from fedcipher_research.baselines.seal import BfvLib, Ckks
from fedcipher_research.baselines.tfhe import Tfhe

__all__ = ["BASELINES", "BfvLib", "Ckks", "Paillier", "Tfhe"]

BASELINES = (Paillier, BfvLib, Ckks, Tfhe)
