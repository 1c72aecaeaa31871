"""The resource study: schemes in a client and a server process, measured and drawn."""

from fedcipher.bench.sampler import Profile, profile_resources

__all__ = ["Profile", "profile_resources"]
