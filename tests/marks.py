"""Cases of parametrisations that the default tests leave out."""

import pytest


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_but(quick, values):
    """Mark all values of a parameter but those that are quick."""
    assert set(quick) <= set(values)
    return [value if value in quick else slow(value) for value in values]
