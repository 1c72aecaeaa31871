"""A federation on this machine as it is in service: `fedcipher cluster`."""
