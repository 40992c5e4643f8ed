"""Confidence intervals."""

import numpy as np
import pytest

from lazybench.report.bootstrap import estimate


def sample(records, seed=0):
    values = np.random.default_rng(seed).uniform(size=(1, records))
    return values, np.ones((1, records))


def test_the_interval_holds_the_mean_and_shrinks_with_records():
    few, many = estimate([sample(20)]), estimate([sample(500)])
    for found in (few, many):
        assert found.low < found.value < found.high
    assert (many.high - many.low) < (few.high - few.low) / 3
    # The mean of 500 uniform numbers has a standard error of sqrt(1/12/500).
    assert many.high - many.low == pytest.approx(2 * 1.96 * (1 / 12 / 500) ** 0.5, rel=0.1)


def test_the_same_numbers_give_the_same_interval():
    assert estimate([sample(30), sample(40, 1)]) == estimate([sample(30), sample(40, 1)])


def test_datasets_count_alike_whatever_their_size():
    found = estimate([(np.zeros((1, 90)), np.ones((1, 90))), (np.ones((1, 3)), np.ones((1, 3)))])
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)


def test_a_ratio_is_of_sums():
    found = estimate([(np.array([[1.0, 5.0]]), np.array([[1.0, 2.0]]))])
    assert found.value == 2
    assert (found.low, found.high) == (1, 2.5)


def test_one_record_has_no_interval_and_zero_times_no_value():
    assert estimate([sample(1)]).low is None
    assert estimate([(np.ones((1, 2)), np.zeros((1, 2)))]) is None
