"""Distributions of numbers, atoms and categories, against sums over categories and integrals over numbers."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import quad

from machines import tensor
from rtbm import InvalidInputError, RTBMDensity, RTBMDensityCV, RTBMDistribution
from rtbm.distributions import CategoryColumn, ColumnMap, Interval, MixedDistribution, NumberColumn, YeoJohnson

NAN = math.nan


MACHINES = [
    RTBMDistribution([[1.0, 0.3], [0.3, 2.0]], [[0.7], [0.2]], [[2.0]], [0.1, -0.3], [0.2]),
    RTBMDistribution([[2.0, -0.5], [-0.5, 1.5]], [[0.3], [0.9]], [[3.0]], [1.0, 0.4], [0.5]),
    RTBMDistribution([[3.0, 0.0], [0.0, 3.0]], [[0.0], [0.0]], [[3.0]], [-4.0, 2.0], [0.0]),
]
COLOUR = CategoryColumn(tensor([0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [1 / 3, 1 / 3, 1 / 3]))
SHAPE = CategoryColumn(tensor([0.4, 0.6], [0.9, 0.1], [0.25, 0.75]))
CAPPED = NumberColumn(Interval(0.0, math.inf), [0.0, 1.5], tensor([0.5, 0.3, 0.2], [0.9, 0.05, 0.05], [0.2, 0.4, 0.4]))
COLUMNS = [COLOUR, NumberColumn(YeoJohnson(0.6, 0.1, 1.3)), SHAPE, CAPPED]


@pytest.fixture(scope="module")
def rows():
    return MixedDistribution([0.5, 0.3, 0.2], MACHINES, COLUMNS)


def total(function, high=math.inf):
    """The integral from 0, along log x."""
    ends = -25.0, min(math.log(high), 12.0)
    return quad(lambda t: math.exp(t) * function(math.exp(t)), *ends, epsabs=1e-11, epsrel=1e-10, limit=300)[0]


def probability(rows, *row):
    return float(rows.log_prob(tensor(*row)).exp())


def test_probabilities_sum_to_one_over_categories_and_atoms(rows):
    for number in (-1.0, 0.7):
        for amount in (0.0, 1.5, 2.3, NAN):
            terms = [probability(rows, c, number, s, amount) for c, s in itertools.product(range(3), range(2))]
            assert sum(terms) == pytest.approx(probability(rows, NAN, number, NAN, amount), rel=1e-12)
    amounts = [probability(rows, 1, NAN, NAN, value) for value in (0.0, 1.5)]
    smooth = total(lambda x: probability(rows, 1, NAN, NAN, x))
    assert sum(amounts) + smooth == pytest.approx(probability(rows, 1, NAN, NAN, NAN), abs=1e-8)


def test_all_gaps_have_probability_one(rows):
    assert probability(rows, NAN, NAN, NAN, NAN) == pytest.approx(1, abs=1e-14)


def test_marginals_and_conditionals_multiply_to_the_joint_density(rows):
    row = tensor(2, 0.4, 0, 1.5)
    everything = float(rows.log_prob(row))
    for n in (1, 2, 3):
        for known in itertools.combinations(range(4), n):
            rest = [i for i in range(4) if i not in known]
            given = rows.conditional({i: row[i] for i in known})
            split = rows.marginal(known).log_prob(row[list(known)]) + given.log_prob(row[rest])
            assert float(split) == pytest.approx(everything, abs=1e-11)
    again = rows.conditional({0: row[0]}).conditional({1: row[2]}).log_prob(row[[1, 3]])
    assert float(again) == pytest.approx(
        float(rows.conditional({0: row[0], 2: row[2]}).log_prob(row[[1, 3]])), abs=1e-12
    )


def test_many_rows_at_once_are_rows_one_by_one(rows):
    numbers, shapes = tensor(0.3, -1.0, NAN, 2.0), tensor(0, 1, 1, NAN)
    given = rows.conditional({1: numbers, 2: shapes})
    assert given.batch_shape == (4,)
    for r in range(4):
        known = {i: v[r] for i, v in ((1, numbers), (2, shapes)) if not v[r].isnan()}
        one = rows.conditional(known)
        colour, amount = (
            (0, 1) if len(known) == 2 else ([i for i in range(4) if i not in known].index(i) for i in (0, 3))
        )
        assert torch.allclose(given.category(0).probs[r], one.category(colour).probs, atol=1e-13)
        assert torch.allclose(given.mean[r, 1], one.mean[amount], rtol=1e-10)
        assert torch.allclose(given.variance[r, 1], one.variance[amount], rtol=1e-9)
        levels = tensor(0.05, 0.2, 0.5, 0.9)
        assert torch.allclose(given.marginal(1).icdf(levels)[:, r], one.marginal(amount).icdf(levels), rtol=1e-11)
        value = tensor(1, 0.7)
        expected = one.marginal([colour, amount]).log_prob(value)
        assert torch.allclose(given.log_prob(value)[r], expected, atol=1e-12)


def test_categories_follow_from_the_rule_of_bayes(rows):
    given = rows.conditional({1: 0.4, 3: 0.0})
    joint = tensor(*[probability(rows, c, 0.4, NAN, 0.0) for c in range(3)])
    assert torch.allclose(given.category(0).probs, joint / joint.sum(), atol=1e-13)
    entropy = -(joint / joint.sum() * (joint / joint.sum()).log()).sum()
    assert float(given.category(0).entropy()) == pytest.approx(float(entropy), abs=1e-12)
    atoms = rows.conditional({0: 1.0}).category(2).probs
    expected = [probability(rows, 1, NAN, NAN, value) / probability(rows, 1, NAN, NAN, NAN) for value in (0.0, 1.5)]
    assert atoms[1:].tolist() == pytest.approx(expected, abs=1e-13)


def test_distribution_function_jumps_at_atoms(rows):
    amount = rows.conditional({0: 2.0}).marginal(2)
    atoms = rows.conditional({0: 2.0}).category(2).probs[1:]
    for atom, mass in zip((0.0, 1.5), atoms, strict=True):
        jump = amount.cdf([atom]) - amount.cdf([atom - 1e-9])
        assert float(jump) == pytest.approx(float(mass), abs=1e-7)
        middle = amount.cdf([atom]) - mass / 2
        assert float(amount.icdf(middle)) == atom
    x = tensor(0.3, 1.1, 2.5, 7.0)[:, None]
    assert torch.allclose(amount.icdf(amount.cdf(x)), x, rtol=1e-9)
    smooth = total(lambda x: float(amount.log_prob([x]).exp()), 1.1)
    assert float(amount.cdf([1.1])) == pytest.approx(smooth + float(atoms[0]), abs=1e-8)
    assert amount.icdf([0.0, 1.0])[:, 0].tolist() == [0.0, math.inf]


def test_moments(rows):
    given = rows.conditional({0: 0.0, 2: 1.0})
    amount = given.marginal(1)
    atoms = given.category(1).probs[1:]
    moments = [total(lambda x, k=k: x**k * float(amount.log_prob([x]).exp())) for k in (1, 2)]
    mean = moments[0] + float(atoms @ tensor(0.0, 1.5))
    square = moments[1] + float(atoms @ tensor(0.0, 1.5) ** 2)
    assert float(given.mean[1]) == pytest.approx(mean, rel=1e-6)
    assert float(given.variance[1]) == pytest.approx(square - mean**2, rel=1e-5)
    assert rows.mean.isnan().tolist() == [True, False, True, False]


def test_draws(rows):
    generator = torch.Generator().manual_seed(0)
    draws = rows.sample((20_000,), generator)
    for i in (0, 2):
        probs = rows.category(i).probs
        counts = torch.bincount(draws[:, i].long()).double() / len(draws)
        assert torch.allclose(counts, probs, atol=0.015)
    assert float((draws[:, 3] == 1.5).double().mean()) == pytest.approx(float(rows.category(3).probs[2]), abs=0.015)
    number = rows.marginal(1)
    p = torch.sort(number.cdf(draws[:, 1:2]).double()).values
    assert float((p - torch.linspace(0, 1, len(p)).double()).abs().max()) < 0.015
    assert torch.equal(
        rows.sample((5,), torch.Generator().manual_seed(1)), rows.sample((5,), torch.Generator().manual_seed(1))
    )
    given = rows.conditional({0: tensor(0, 2, NAN)})
    assert given.sample((7,)).shape == (7, 3, 3)
    assert torch.allclose(given.sample((20_000,), generator)[..., 0].mean(0), given.mean[:, 0], atol=0.06)


def test_tables_of_categories_alone():
    rows = MixedDistribution(
        [0.5, 0.5], [], [CategoryColumn(tensor([0.9, 0.1], [0.2, 0.8])), CategoryColumn(torch.eye(2))]
    )
    assert rows.log_prob([[0, 0], [0, 1], [NAN, 1]]).exp().tolist() == pytest.approx([0.45, 0.1, 0.5])
    assert rows.conditional({0: 0.0}).category(0).probs.tolist() == pytest.approx([9 / 11, 2 / 11])
    assert rows.sample((3,)).shape == (3, 2)


def test_gradients_reach_tables_values_and_machines():
    table = tensor([0.7, 0.3], [0.2, 0.8]).requires_grad_()
    x = tensor(0.3, 1.0).requires_grad_()
    machines = [RTBMDistribution([[1.0]], [[0.4]], [[2.0]], [b], [0.0]) for b in (0.0, 1.0)]

    def log_prob(table, number):
        columns = [NumberColumn(), CategoryColumn(table / table.sum(1, keepdim=True))]
        return MixedDistribution([0.4, 0.6], machines, columns).log_prob(torch.stack([number, tensor(1.0)[0]]))

    assert torch.autograd.gradcheck(log_prob, (table, x[0]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MixedDistribution([0.5, 0.3, 0.2], MACHINES[:2], COLUMNS), "machines must be 3"),
        (lambda: MixedDistribution([0.5, 0.6, 0.1], MACHINES, COLUMNS), "sum 1"),
        (lambda: MixedDistribution([1.0], [], [CategoryColumn(tensor([0.5, 0.6]))]), "sum 1"),
        (lambda: MixedDistribution([1.0], [], [CategoryColumn(tensor([0.5], [0.5]))]), "shape"),
        (lambda: MixedDistribution([1.0], [], [ColumnMap()]), "columns"),
        (
            lambda: MixedDistribution([1.0], MACHINES[:1], [NumberColumn(atoms=[2.0, 1.0]), NumberColumn()]),
            "increasing",
        ),
        (lambda: MixedDistribution([1.0], MACHINES[:1], [NumberColumn(atoms=[2.0]), NumberColumn()]), "shape"),
    ],
)
def test_what_cannot_be(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_columns_that_are_all_atoms():
    machines = [RTBMDistribution([[1.0]], [[0.4]], [[2.0]], [b], [0.0]) for b in (0.0, 1.0)]
    number = NumberColumn(ColumnMap(), [0.0, 2.0], tensor([0.0, 0.7, 0.3], [0.5, 0.25, 0.25]))
    given = MixedDistribution([0.5, 0.5], machines, [number, CategoryColumn(torch.eye(2))]).conditional(
        {1: tensor(0, 1)}
    )
    assert given.mean[0, 0] == pytest.approx(0.6)
    assert given.cdf([[0.1], [0.1]])[0] == pytest.approx(0.7)
    assert given.icdf([0.3, 0.8, 1.0])[:, 0, 0].tolist() == [0.0, 2.0, 2.0]
    everywhere = NumberColumn(ColumnMap(), [0.0, 2.0], tensor([0.0, 0.7, 0.3], [0.0, 0.5, 0.5]))
    alone = MixedDistribution([1.0, 0.0], machines, [everywhere])
    assert float(alone.mean) == pytest.approx(0.6)
    assert alone.icdf([0.3, 1.0])[:, 0].tolist() == [0.0, 2.0]


def test_what_has_no_probability(rows):
    with pytest.raises(InvalidInputError, match="possible"):
        rows.conditional({3: -1.0}).category(0)
    sure = MixedDistribution([1.0], [], [CategoryColumn(tensor([1.0, 0.0])), CategoryColumn(tensor([0.5, 0.5]))])
    assert sure.log_prob([1.0, 0.0]) == -math.inf
    with pytest.raises(InvalidInputError, match="possible"):
        sure.conditional({0: 1.0}).log_prob([0.0])


def test_no_rows(rows):
    empty = rows.conditional({0: torch.zeros(0)})
    assert empty.shares.shape == (0, 3)
    assert empty.log_prob(torch.zeros(0, 3)).shape == (0,)
    assert rows.log_prob(torch.zeros(0, 4)).shape == (0,)
    assert rows.sample((0,)).shape == (0, 4)
    with pytest.raises(InvalidInputError, match="column or more"):
        rows.marginal([])


def test_batches_of_two_dimensions(rows):
    colours = tensor([0], [2])
    given = rows.conditional({0: colours, 2: torch.ones(2, 1)})
    values = tensor([0.3, 0.5])
    expected = [float(rows.conditional({0: c, 2: 1.0}).log_prob(values[0])) for c in (0.0, 2.0)]
    assert given.log_prob(values[0])[:, 0].tolist() == pytest.approx(expected, abs=1e-12)
    with pytest.raises(InvalidInputError, match="broadcast"):
        given.log_prob(torch.zeros(3, 2))  # would widen the batch


def test_values_that_are_no_categories(rows):
    with pytest.raises(InvalidInputError, match="categories, 0 to 2"):
        rows.log_prob([3.0, 0.0, 0.0, 0.0])
    with pytest.raises(InvalidInputError, match="categories, 0 to 2"):
        rows.conditional({0: 0.5})
    with pytest.raises(InvalidInputError, match="one column of numbers"):
        rows.cdf([0.0])
    with pytest.raises(InvalidInputError, match="neither"):
        rows.category(1)
    with pytest.raises(InvalidInputError, match="broadcast"):
        rows.conditional({0: tensor(0, 1)}).log_prob(np.zeros((3, 3)))


def random_table(seed):
    """Skewed columns with zeros that many rows share, gaps, and categories."""
    rng = np.random.default_rng(seed)
    n, latent = int(rng.integers(60, 400)), rng.normal(size=(400, 3))
    latent = latent[:n] @ rng.normal(size=(3, 3))
    amount = np.exp(rng.uniform(0.2, 1.2) * latent[:, 0]) * (rng.random(n) > rng.choice([0.0, 0.2]))
    delay = rng.gamma(rng.uniform(0.5, 3), np.exp(0.3 * latent[:, 1]))
    frame = pd.DataFrame({"amount": amount, "delay": delay, "change": np.sinh(latent[:, 2])})
    frame = frame.mask(rng.random(frame.shape) < rng.choice([0.0, 0.1]))
    return frame.assign(kind=rng.choice(list("abc"), n, p=[0.5, 0.4, 0.1]))


def check_moments(model, frame):
    """Means and standard deviations are those of draws, and within the range of the data widened by its length."""
    means, deviations = model.distribution_.mean, model.distribution_.variance.sqrt()
    draws = model.sample(100_000, random_state=0)
    for i, name in enumerate(["amount", "delay", "change"]):
        low, high = frame[name].min(), frame[name].max()
        mean, deviation, own = float(means[i]), float(deviations[i]), draws[name].to_numpy()
        assert 2 * low - high <= mean <= 2 * high - low
        assert deviation <= high - low
        squares = (own - mean) ** 2
        assert abs(own.mean() - mean) <= 6 * own.std() / math.sqrt(len(own))
        assert abs(squares.mean() - deviation**2) <= 6 * squares.std() / math.sqrt(len(own))


@pytest.mark.parametrize("margins", [None, "log", "yeo-johnson", "learned"])
@pytest.mark.parametrize("seed", range(4))
def test_means_stay_near_the_data(seed, margins):
    """Also those of components that hold next to no rows."""
    frame = random_table(seed)
    check_moments(
        RTBMDensity(1, n_components=8, regularization=10.0, margins=margins, n_init=1, random_state=0).fit(frame), frame
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 12))
def test_means_of_committees_stay_near_the_data(seed):
    frame = random_table(seed)
    check_moments(RTBMDensityCV(random_state=0).fit(frame), frame)
