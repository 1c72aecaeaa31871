"""TFHE radix integers for `fedcipher_research.baselines.tfhe`: keys, encryption, one running sum, decryption."""

from fedcipher_tfhe._native import Client, Sum, keygen

__all__ = ["Client", "Sum", "keygen"]
