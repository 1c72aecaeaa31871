"""In tests of research the baselines are registered, in this process and in those that it starts."""

import pytest
from fedcipher.schemes import register, registry
from fedcipher_research.baselines import BASELINES


@pytest.fixture(scope="module", autouse=True)
def _baselines():
    with pytest.MonkeyPatch.context() as patch:
        # What importing `registered` has left in this process is taken back with the rest.
        patch.setattr(registry, "_registered", {})
        patch.setenv(registry.MODULES, "fedcipher_research.baselines.registered")
        for baseline in BASELINES:
            register(baseline)
        yield
