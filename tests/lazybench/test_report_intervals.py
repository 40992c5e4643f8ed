"""Confidence intervals: their level, by simulation, and where there is none."""

import numpy as np
import pytest

from lazybench.analysis.intervals import LEAST_LONG_TAILED, estimate

# What is simulated: each gives numerators and denominators `(samples, records)` of a dataset, and its true value.


def f1(rng, shape, dataset):
    """Scores of answers: a lump at 0, the rest between 0 and 1."""
    wrong, a, b = [(0.2, 2, 2), (0.5, 1.2, 3), (0.85, 4, 2)][dataset % 3]
    return (rng.random(shape) >= wrong) * rng.beta(a, b, shape), np.ones(shape), (1 - wrong) * a / (a + b)


def accuracy(rng, shape, dataset):
    right = [0.3, 0.6, 0.1][dataset % 3]
    return (rng.random(shape) < right).astype(float), np.ones(shape), right


def difference(rng, shape, dataset):
    """Paired differences of scores, of which most are 0."""
    values = 0.1 + (rng.beta(1, 1.5, shape) - 0.4)
    return (rng.random(shape) < 0.2) * values, np.ones(shape), 0.02


def speedup(noise):
    def draw(rng, shape, dataset):
        """Times of prompts of different lengths, both taken with noise."""
        of = [1.5, 1.9, 1.2][dataset % 3]
        length = np.exp(0.4 * rng.standard_normal(shape))
        before, after = (np.exp(noise * rng.standard_normal(shape)) for _ in range(2))
        return length * before, length / of * after, of

    return draw


def divergence(sigma):
    def draw(rng, shape, dataset):
        typical = [0.1, 0.3, 0.05][dataset % 3]
        return typical * np.exp(sigma * rng.standard_normal(shape)), np.ones(shape), typical * np.exp(sigma**2 / 2)

    return draw


def harm_reduction(rng, shape, dataset):
    """Two schedules' divergences on the same records."""
    shared, own = rng.standard_normal((2, *shape))
    return 0.3 * np.exp(shared), 0.15 * np.exp(0.8 * shared + 0.6 * own), 2.0


def coverage(draw, datasets, records, samples, long_tailed=False):
    """How many of the samples with an interval have the truth in it, and how many have one."""
    rng = np.random.default_rng(5)
    drawn = [draw(rng, (samples, records), dataset) for dataset in range(datasets)]
    truth = float(np.mean([true for _, _, true in drawn]))
    found = [
        estimate([(top[[sample]], bottom[[sample]]) for top, bottom, _ in drawn], long_tailed=long_tailed)
        for sample in range(samples)
    ]
    held = [one.low <= truth <= one.high for one in found if one.low is not None]
    return float(np.mean(held)) if held else None, len(held) / samples


POPULATIONS = {"f1": f1, "accuracy": accuracy, "difference": difference}
POPULATIONS |= {"times 2%": speedup(0.02), "times 10%": speedup(0.1)}
LONG = {"divergence": divergence(1.0), "harm reduction": harm_reduction}


@pytest.mark.parametrize("name", POPULATIONS)
@pytest.mark.parametrize(("datasets", "records"), [(1, 8), (3, 4), (1, 20), (16, 2)])
def test_intervals_hold_their_level(name, datasets, records):
    held, given = coverage(POPULATIONS[name], datasets, records, samples=300)
    assert given < 0.05 or held >= 0.92


@pytest.mark.parametrize("name", LONG)
def test_intervals_of_long_tails_hold_their_level(name):
    held, given = coverage(LONG[name], 1, 98, samples=300, long_tailed=True)
    assert held >= 0.92
    assert given == 1


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


def test_the_mean_of_normal_numbers_has_students_interval():
    values = np.array([[4.0, 6.0, 5.0, 3.0, 7.0, 5.5, 4.5]])  # symmetric: nothing to correct
    found = estimate([(values, np.ones_like(values))])
    error = values.std(ddof=1) / 7**0.5
    assert found.value == 5
    assert found.high - 5 == pytest.approx(5 - found.low) == pytest.approx(2.4469 * error, rel=1e-3)


def test_datasets_count_alike_or_by_their_weights():
    zeros, ones = (np.zeros((1, 90)), np.ones((1, 90))), (np.ones((1, 3)), np.ones((1, 3)))
    assert estimate([zeros, ones]).value == 0.5
    assert estimate([zeros, ones], [0.25, 0.75]).value == 0.75


def test_a_ratio_of_times_moves_with_the_noise_and_not_with_the_lengths():
    rng = np.random.default_rng(0)
    length, noise = rng.uniform(1, 100, (1, 40)), rng.normal(1, 0.01, (1, 40))
    found = estimate([(2 * length * noise, length)])
    assert found.low < 2 < found.high
    assert found.high - found.low < 0.03


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
    top = np.array([values])
    found = estimate([(top, np.ones_like(top))])
    assert found.value == pytest.approx(top.mean())
    assert (found.low, found.high) == (None, None)


def test_a_long_tail_needs_more_records():
    enough = sample(LEAST_LONG_TAILED + 2)
    assert estimate([enough], long_tailed=True).low is not None
    fewer = tuple(row[:, :20] for row in enough)
    assert estimate([fewer], long_tailed=True).low is None
    assert estimate([fewer]).low is not None


def test_an_interval_ends_at_the_limits():
    values = np.array([[0.0, 0.0, 0.0, 3.0, 5.0, 8.0, 9.0, 100.0]])
    open_, within = (estimate([(values, np.ones_like(values))], **of) for of in ({}, {"limits": (0, 100)}))
    assert open_.low < 0
    assert within.low == 0
    assert within.high == min(100, open_.high)


def test_no_value_where_there_is_nothing_to_divide_by():
    assert estimate([(np.ones((1, 2)), np.zeros((1, 2)))]) is None
    assert estimate([(np.ones((1, 0)), np.ones((1, 0)))]) is None
