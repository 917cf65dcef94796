from collections.abc import Iterator

import pytest
from hypothesis import settings

from slipstream.kernels import _native, reference

settings.register_profile("kernels", deadline=None)  # a shared machine may pause for longer than any deadline
settings.load_profile("kernels")
settings.register_profile("emulated", deadline=None, max_examples=20)  # make test-neon: emulation is slow


@pytest.fixture(params=[_native, reference], ids=["native", "reference"])
def backend(request: pytest.FixtureRequest):
    """Each backend in turn."""
    return request.param


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Puts the instruction set and the thread count back."""
    isa, threads = _native.isa(), _native.threads()
    yield
    _native.use_isa(isa)
    _native.set_threads(threads)
