"""Data sets and their partitions for the demo, the benchmarks and the examples."""

from fedcipher.data.partition import partition
from fedcipher.data.sets import DATASETS, Dataset, load

__all__ = ["DATASETS", "Dataset", "load", "partition"]
