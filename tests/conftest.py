import gc
import os

# The models here are tiny: one thread each is faster than the threads' own bookkeeping, and steadier under load.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from cuda_device import CudaDevice
from pretend_device import PretendDevice

Device = CudaDevice if os.environ.get("TEST_ON_CUDA") else PretendDevice
gc.disable()  # until all is imported


def pytest_collection_finish():
    """Freeze imported objects, so that the collection after each failed record does not scan them."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def device():
    """A device that is not the CPU."""
    with Device() as device:
        yield device


@pytest.fixture
def other():
    """A second one of its kind."""
    with Device(1) as other:
        yield other
