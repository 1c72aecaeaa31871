"""Decisions of a federation's server that need no framework: plain data in, plain data out."""
