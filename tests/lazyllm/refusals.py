"""What LazyLLM refuses, it refuses in one line."""

import pytest
import torch
from replay import TOLERANCE

import lazyllm


def refuse(says, call):
    with pytest.raises(lazyllm.LazyLLMError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


def outcome(call):
    """What `call` returns and False, or None and True where it is refused in one line."""
    try:
        return call(), False
    except lazyllm.LazyLLMError as error:
        says = str(error)
    assert "\n" not in says
    return None, True


def honour_or_refuse(model, call):
    """Assert that `call`, with nothing pruned, gives the unmodified model's result, or is refused in one line.

    Returns:
        the unmodified model's result, a tensor, and whether LazyLLM refused.
    """

    def enabled():
        with lazyllm.enable(model, ""):
            return call()

    expected = call()
    found, refused = outcome(enabled)
    if not refused:
        torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    return expected, refused
