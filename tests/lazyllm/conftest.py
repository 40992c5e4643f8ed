from __future__ import annotations

import families
import pytest


@pytest.fixture(scope="module")
def model():
    return families.build("llama")


@pytest.fixture(scope="module")
def ids():
    return families.prompt(40)
