"""Confidence intervals: they hold their level in simulation, or are missing."""

import numpy as np
import pandas as pd
import pytest

from lazybench.analysis.averages import KL, SCORE_DIFFERENCE, TTFT, average
from lazybench.analysis.intervals import (
    bounded_mean,
    geometric_mean,
    mean_of_ratios,
    ratio_of_geometric_means,
    ratio_of_means,
    student_mean,
)

TASKS = "aaabbbcccdddeeff"
# The numbers of records of LongBench's datasets at hand, nine datasets of three, one task, and 100 records of one.
SIZES = {
    "all": [3, 5, 4, 7, 7, 4, 6, 3, 6, 4, 6, 8, 2, 8, 13, 12],
    "nine of three": [3] * 9,
    "one task": [7, 7, 4],
    "one dataset": [100],
}
REPEATS = 300


def losses(share, least=0.2):
    """Scores lost, of 1: some records lose much; and the mean."""
    return lambda rng, n: (rng.random(n) < share) * rng.uniform(-1, -least, n), -share * (least + 1) / 2


CHANGES = {
    **{f"{share:.0%} lose": losses(share) for share in (0.02, 0.05, 0.1)},
    "5% lose everything": losses(0.05, 1),
    "small": (lambda rng, n: (rng.random(n) < 0.7) * rng.normal(-0.01, 0.05, n), -0.007),
    "symmetric": (lambda rng, n: (rng.random(n) < 0.2) * rng.choice([-1, 1], n) * rng.uniform(0.2, 1, n), 0.0),
}


def coverage(results, truth):
    """The share of results whose interval has the truth."""
    return np.mean([result.low <= truth <= result.high for result in results])


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("sizes", SIZES)
def test_intervals_of_score_differences_hold_their_level(sizes, change):
    rng, (draw, mean) = np.random.default_rng(1), CHANGES[change]
    datasets = np.repeat(np.arange(len(SIZES[sizes])), SIZES[sizes])
    records = pd.DataFrame({"dataset": datasets, "task": [TASKS[dataset] for dataset in datasets]})
    results = []
    for _ in range(REPEATS):
        scores = draw(rng, len(records))
        results.append(average(records.assign(score=scores, unmodified_score=0.0), SCORE_DIFFERENCE))
    assert coverage(results, 100 * mean) >= 0.93


@pytest.mark.parametrize("num_records", [9, 18, 27, 98])
def test_intervals_of_divergences_and_their_ratios_hold_their_level(num_records):
    rng, results, ratios, means = np.random.default_rng(2), [], [], []
    for _ in range(REPEATS):
        # As measured: log-normal with a deviation of 1.2, of which most is the record's.
        logs = rng.normal(-2, 1.0, num_records) + rng.normal(0, 0.7, (2, num_records))
        one, other = np.minimum(np.exp(logs), 8)
        results.append(geometric_mean(one))
        ratios.append(ratio_of_geometric_means(2 * one, other))
        means.append(ratio_of_means(2 * one, other))
    assert coverage(results, np.exp(-2)) >= 0.93
    assert coverage(ratios, 2) >= 0.93
    assert all(result.low is None for result in means) if num_records < 60 else coverage(means, 2) >= 0.93


def test_intervals_of_divergences_hold_their_level_if_some_records_have_none():
    rng, results = np.random.default_rng(3), []
    for _ in range(REPEATS):
        results.append(geometric_mean(rng.lognormal(-2, 1.2, 98) * (rng.random(98) > 0.05)))
    assert coverage(results, np.exp(0.95 * -2 + 0.05 * np.log(1e-6))) >= 0.93


@pytest.mark.parametrize("per_dataset", [1, 3])
def test_intervals_of_speedups_hold_their_level(per_dataset):
    rng, covered = np.random.default_rng(4), []
    datasets = np.repeat(np.arange(16), per_dataset)
    records = pd.DataFrame({"task": [TASKS[dataset] for dataset in datasets], "dataset": datasets})
    speedups = rng.uniform(1.6, 2.4, 16)
    truth = pd.Series(speedups).groupby([*TASKS]).mean().mean()
    for noise in rng.normal(1, 0.15, (REPEATS, len(datasets))):
        seconds = rng.uniform(1, 10, len(datasets))
        measured = records.assign(ttft_s=seconds, unmodified_ttft_s=seconds * speedups[datasets] * noise)
        covered.append(average(measured, TTFT))
    assert coverage(covered, truth) >= 0.93


def test_the_mean_of_symmetric_numbers_has_students_interval():
    values = np.array([4.0, 6.0, 5.0, 3.0, 7.0, 5.5, 4.5])
    result, error = student_mean(values), values.std(ddof=1) / 7**0.5
    assert result.value == 5
    assert result.high - 5 == pytest.approx(5 - result.low) == pytest.approx(2.4469 * error, rel=1e-3)
    geometric = geometric_mean(np.exp(values))
    assert np.log([geometric.low, geometric.value, geometric.high]) == pytest.approx(
        [result.low, result.value, result.high], rel=1e-3
    )


def test_the_interval_of_equal_shares_is_clopper_and_pearsons():
    result = bounded_mean([0.0] * 98, np.ones(98), (-100, 100))
    assert result.value == 0
    assert result.high == pytest.approx(100 * (1 - 0.025 ** (1 / 98)), rel=0.1)
    assert result.low == -result.high
    result = bounded_mean([0.0] * 10 + [100.0] * 90, np.ones(100), (0, 100))
    assert (result.low, result.high) == pytest.approx((82.4, 95.1), abs=0.5)


def test_the_order_of_records_changes_no_digit():
    rng = np.random.default_rng(3)
    values, weights, order = rng.uniform(0, 1, 57), rng.uniform(0, 1, 57), rng.permutation(57)
    assert student_mean(values, weights) == student_mean(values[order], weights[order])
    assert bounded_mean(values, weights, (0, 1)) == bounded_mean(values[order], weights[order], (0, 1))
    assert geometric_mean(values) == geometric_mean(values[order])


def test_a_ratio_of_times_moves_with_the_noise_and_not_with_the_lengths():
    rng = np.random.default_rng(0)
    length, noise = rng.uniform(1, 100, 40), rng.normal(1, 0.01, 40)
    result = mean_of_ratios(2 * length * noise, length, np.zeros(40), np.ones(40))
    assert result.low < 2 < result.high
    assert result.high - result.low < 0.03


@pytest.mark.parametrize("values", [[50.0] * 30, [0.1 + 0.2] * 15 + [0.3] * 15, [0.1, 0.9], [0.7]])
def test_no_interval_of_a_constant_or_of_few_records(values):
    result = student_mean(values)
    assert result.value == pytest.approx(np.mean(values))
    assert (result.low, result.high) == (None, None)
    assert len(values) >= 3 or bounded_mean(values, np.ones(len(values)), (0, 100)).low is None


def test_the_mean_of_divergences_has_no_interval():
    records = pd.DataFrame({"task": "a", "dataset": "b", "kl": np.random.default_rng(0).lognormal(-2, 1, 98)})
    assert average(records, KL).value == pytest.approx(records["kl"].mean())
    assert average(records, KL).low is None


def test_no_value_where_there_is_nothing_to_divide_by():
    assert mean_of_ratios([1.0, 1.0], [0.0, 0.0], ["a", "a"], [1, 1]).value is None
    assert ratio_of_means(np.ones(2), np.zeros(2)).value is None
