"""Confidence intervals: Student's where nothing is to be corrected, and none where their level would not hold."""

import numpy as np
import pandas as pd
import pytest

from lazybench.analysis.averages import TTFT, average
from lazybench.analysis.intervals import estimate, geometric_mean


def test_intervals_of_skewed_scores_hold_their_level():
    rng = np.random.default_rng(5)
    # Scores of answers to three datasets, half of them wrong, the rest between 0 and 1.
    scores = (rng.random((300, 12)) < 0.5) * rng.beta(1.2, 3, (300, 12))
    results = [estimate(sample, datasets=np.repeat([0, 1, 2], 4)) for sample in scores]
    covered = [result.low <= 0.5 * 1.2 / 4.2 <= result.high for result in results if result.low is not None]
    assert len(covered) > 200
    assert np.mean(covered) >= 0.92


def test_records_alone_in_their_datasets_have_an_interval_by_task():
    rng = np.random.default_rng(1)
    records = pd.DataFrame({"task": np.repeat([*"abcdef"], [3, 3, 3, 3, 2, 2]), "dataset": range(16)})
    speedups = rng.uniform(1.6, 2.4, 16)  # of the datasets
    truth, covered = pd.Series(speedups).groupby(records["task"]).mean().mean(), []
    for noise in rng.normal(1, 0.15, (200, 16)):
        seconds = rng.uniform(1, 10, 16)
        result = average(records.assign(ttft_s=seconds, unmodified_ttft_s=seconds * speedups * noise), TTFT)
        covered.append(result.low <= truth <= result.high)
    assert np.mean(covered) >= 0.92


def test_the_mean_of_symmetric_numbers_has_students_interval():
    values = np.array([4.0, 6.0, 5.0, 3.0, 7.0, 5.5, 4.5])
    result, error = estimate(values), values.std(ddof=1) / 7**0.5
    assert result.value == 5
    assert result.high - 5 == pytest.approx(5 - result.low) == pytest.approx(2.4469 * error, rel=1e-3)
    geometric = geometric_mean(np.exp(values))
    assert np.log([geometric.low, geometric.value, geometric.high]) == pytest.approx(
        [result.low, result.value, result.high], rel=1e-3
    )


def test_the_order_of_sums_changes_no_digit():
    rng = np.random.default_rng(3)
    values, order = rng.uniform(0, 1, 57), rng.permutation(57)
    assert values.mean() != values[order].mean() or values.sum() != values[order].sum()
    assert estimate(values) == estimate(values[order])
    assert geometric_mean(values) == geometric_mean(values[order])


def test_datasets_count_alike_or_by_their_weights():
    values, datasets = [0.0] * 90 + [1.0] * 3, ["a"] * 90 + ["b"] * 3
    assert estimate(values, datasets=datasets).value == 0.5
    assert estimate(values, datasets=datasets, weights=[0.25 / 90] * 90 + [0.25] * 3).value == pytest.approx(0.75)


def test_a_ratio_of_times_moves_with_the_noise_and_not_with_the_lengths():
    rng = np.random.default_rng(0)
    length, noise = rng.uniform(1, 100, 40), rng.normal(1, 0.01, 40)
    result = estimate(2 * length * noise, length)
    assert result.low < 2 < result.high
    assert result.high - result.low < 0.03


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 30,  # a floor
        [50.0] * 30,  # a constant of the method
        [0.1 + 0.2] * 15 + [0.3] * 15,  # the same but for rounding
        [0.0] * 26 + [0.2, 0.1, 0.5, 0.9],  # few that tell anything
        [0.1, 0.9, 0.4, 0.3],  # few
        [0.7],
    ],
)
def test_no_interval_where_the_level_would_not_hold(values):
    result = estimate(values)
    assert result.value == pytest.approx(np.mean(values))
    assert (result.low, result.high) == (None, None)


def test_an_interval_ends_at_the_limits():
    values = [0.0, 0.0, 0.0, 3.0, 5.0, 8.0, 9.0, 100.0]
    unlimited, limited = estimate(values), estimate(values, limits=(0, 100))
    assert unlimited.low < 0
    assert (limited.low, limited.high) == (0, min(100, unlimited.high))


def test_no_value_where_there_is_nothing_to_divide_by():
    assert estimate([1.0, 1.0], [0.0, 0.0]).value is None
    assert estimate([]).value is None
