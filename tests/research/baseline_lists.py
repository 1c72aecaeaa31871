"""The lists of `scheme_lists`, of the schemes to compare with."""

import scheme_lists
from fedcipher.schemes.variants import variants_of
from fedcipher_research.baselines import BASELINES, QUICK


def _all():
    return [variant for cls in BASELINES for variant in variants_of(cls)]


def quick(variant):
    """Not TFHE, to which some thousand values are hours of work."""
    return variant.scheme in QUICK


def needs(package):
    """Whose arithmetic is that package's."""
    return lambda variant: package in variant.info.packages


def baselines(*wanted, **given):
    """As `scheme_lists.schemes_that`."""
    return scheme_lists.schemes_that(*wanted, among=_all, **given)


def baseline_variants(*wanted, **given):
    """As `scheme_lists.variants_that`."""
    return scheme_lists.variants_that(*wanted, among=_all, **given)
