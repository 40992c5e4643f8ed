import sys

import families
import pytest
import torch


@pytest.fixture(scope="module")
def model():
    return families.build("llama")


@pytest.fixture(scope="module")
def exact():
    """The same in float64, in which rankings have no ties by rounding."""
    return families.build("llama", dtype=torch.float64)


@pytest.fixture(scope="module")
def ids():
    return families.prompt(40)


@pytest.fixture
def switching():
    """Threads take turns far more often than they would."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)
