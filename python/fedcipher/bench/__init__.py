"""Measures the time, memory and bytes of schemes in a client process and a server process."""

from fedcipher.bench.sampler import Profile, profile_resources

__all__ = ["Profile", "profile_resources"]
