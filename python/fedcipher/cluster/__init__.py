"""Runs a whole federation on this machine, like one in production: `fedcipher cluster`."""
