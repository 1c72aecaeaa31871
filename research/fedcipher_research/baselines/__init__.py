"""The schemes to compare with: Paillier, SEAL's BFV and CKKS, TFHE. They are not meant for service.

Fedcipher does not know them by itself. `fedcipher_research.baselines.registered` registers them, and
``fedcipher-research`` imports that.
"""

from fedcipher_research.baselines.paillier import Paillier
from fedcipher_research.baselines.seal import BfvLib, Ckks
from fedcipher_research.baselines.tfhe import Tfhe

__all__ = ["BASELINES", "QUICK", "BfvLib", "Ckks", "Paillier", "Tfhe"]

BASELINES = (Paillier, BfvLib, Ckks, Tfhe)
QUICK = tuple(cls for cls in BASELINES if cls is not Tfhe)
"""Without TFHE, to which 100 values of 12 clients are more than a minute's work."""
