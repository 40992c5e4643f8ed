"""What LazyLLM refuses, it refuses in one line."""

import pytest

import lazyllm


def refuse(says, call):
    with pytest.raises(lazyllm.LazyLLMError, match=says) as error:
        call()
    assert "\n" not in str(error.value)
