"""What the public API answers, as a net for rewriting what is behind it.

    python tests/golden.py    # writes tests/golden.json from the present code

`exact` holds numbers that may change in their last digits alone; `quality` holds scores of fits on held-out data, where
larger is better, which may not get worse. `tests/test_golden.py` compares.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from machines import bounded, dense, diagonal, tensor
from rtbm import (
    DiscreteGaussian,
    MappedDistribution,
    RTBMClassifier,
    RTBMDensity,
    RTBMDensityCV,
    RTBMImputer,
    RTBMMixture,
    RTBMOutlierDetector,
    RTBMRegressor,
    ThetaNetClassifier,
    ThetaNetRegressor,
    datasets,
    jacobi_theta,
    log_theta,
    riemann_theta,
    theta_moments,
)
from rtbm.distributions import CategoryColumn, ColumnMap, Interval, MixedDistribution, NumberColumn, YeoJohnson

PATH = Path(__file__).with_name("golden.json")
NAN, INF = float("nan"), float("inf")
STEP = 1e-5
"""Of central differences."""


def differences(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The gradient (n, d) of the values (n,) of rows x (n, d)."""
    steps = STEP * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.stack([(function(x + step) - function(x - step)) / (2 * STEP) for step in steps], 1)


def theta_answers() -> Iterator[tuple[str, Any]]:
    for g in range(1, 6):
        rng = np.random.default_rng(g)
        X = rng.normal(size=(g, g))
        Q, z = X @ X.T + np.eye(g) * 10 ** rng.uniform(-1, 1), rng.normal(size=(4, g)) * [[0.3], [1], [5], [40]]
        for phase in ("I", "II"):
            yield f"log_theta {g} {phase}", log_theta(z, Q, phase=phase)
            yield f"theta_moments {g} {phase}", torch.cat([p.flatten() for p in theta_moments(z, Q, phase=phase)[:3]])
        omega = rng.normal(size=(g, g))
        omega = 0.5 * (omega + omega.T) + 1j * Q
        u = 0.3 * rng.normal(size=(2, g)) + 0.1j * rng.normal(size=(2, g))
        characteristic = (rng.integers(0, 2, g) / 2, rng.integers(0, 2, g) / 2)
        for name, more in {"": {}, "derivative": {"derivatives": [rng.normal(size=g)] * 2}}.items():
            yield f"riemann_theta {g} {name}", torch.view_as_real(riemann_theta(u, omega, **more))
        shifted = riemann_theta(u, omega, characteristic=characteristic)
        yield f"riemann_theta {g} characteristic", torch.view_as_real(shifted)
    four = [jacobi_theta(k, 0.3 + 0.1j, 0.2 + 0.7j) for k in (1, 2, 3, 4)]
    yield "jacobi_theta", torch.view_as_real(torch.stack(four))


def machine_answers(name: str, machine: Any) -> Iterator[tuple[str, Any]]:
    d, rng = machine.n_visible, np.random.default_rng(0)
    v = torch.from_numpy(2 * rng.normal(size=(5, d)))
    yield f"{name} log_prob", machine.log_prob(v)
    yield f"{name} gradient", differences(machine.log_prob, v)
    yield f"{name} moments", torch.cat([machine.mean, machine.covariance_matrix.flatten()])
    yield f"{name} box", machine.box_probability(v.amin(0), v.amax(0))
    draws = machine.sample((4000,), generator=torch.Generator().manual_seed(0))
    yield f"{name} draws", 1.0 * ((draws.mean(0) - machine.mean).abs() < 6 * (machine.variance / len(draws)).sqrt())
    if d == 1:
        yield f"{name} cdf", machine.cdf(v)
        yield f"{name} icdf", machine.icdf([0.001, 0.2, 0.5, 0.999])
        return
    gaps = v.clone()
    gaps[0, 0] = gaps[1, 1] = gaps[2, :] = NAN
    yield f"{name} gaps", machine.log_prob(gaps)
    yield f"{name} marginal", machine.marginal([1, 0]).log_prob(v[:, [1, 0]])
    given = machine.conditional({0: v[:, 0]})
    yield f"{name} conditional", torch.cat([given.log_prob(v[:, 1:]), given.mean.flatten(), given.variance.flatten()])


def table_answers(name: str, table: Any, rows: torch.Tensor) -> Iterator[tuple[str, Any]]:
    """Of a distribution whose first column is a number."""
    yield f"{name} log_prob", table.log_prob(rows)
    yield f"{name} moments", torch.stack([table.mean, table.variance]).nan_to_num(0.0)
    given = table.conditional({i: rows[:, i] for i in range(1, rows.shape[1])})
    yield f"{name} conditional", torch.cat([given.mean, given.variance, given.log_prob(rows[:, :1])[:, None]], 1)
    yield f"{name} cdf", given.cdf(rows[:, :1])
    yield f"{name} icdf", given.icdf([0.05, 0.5, 0.9])


def exact() -> dict[str, list[float]]:
    found = dict(theta_answers())
    machines = {
        "dense 1 4": dense(1, 4),
        "dense 2 2": dense(2, 2),
        "dense 3 3 II": dense(3, 3, 1, "II"),
        "diagonal 2 3": diagonal(2, 3),
        "diagonal 1 12": diagonal(1, 12),
        "mixture": RTBMMixture([0.3, 0.7], [dense(2, 2), dense(2, 1, 5)]),
    }
    for name, machine in machines.items():
        found |= dict(machine_answers(name, machine))
    hidden = DiscreteGaussian([[1.3, 0.4], [0.4, 0.9]], [0.3, -0.2])
    found["discrete"] = torch.cat([hidden.log_prob([[0, 0], [1, -2]]), hidden.mean, hidden.covariance_matrix.flatten()])
    rows = tensor([0.7, 0.4], [2.0, -0.5], [0.1, 1.9])
    found |= dict(table_answers("bounds", bounded(dense(2, 2), [0.0, -1.0], [INF, 2.0]), rows))
    maps = [YeoJohnson(0.3, 0.5, 1.2), ColumnMap()]
    found |= dict(table_answers("power", MappedDistribution(machines["mixture"], maps), rows))
    number = NumberColumn(Interval(0.0, INF), [0.0], tensor([0.8, 0.2], [0.5, 0.5]))
    columns = [number, NumberColumn(), CategoryColumn(tensor([0.7, 0.3], [0.1, 0.9]))]
    mixed = MixedDistribution([0.4, 0.6], machines["mixture"].components, columns)
    rows = tensor([0.7, 0.4, 0.0], [0.0, -0.5, 1.0], [1.9, NAN, 1.0], [0.4, 0.1, NAN])
    found |= dict(table_answers("mixed", mixed, rows))
    return {name: np.asarray(value).ravel().tolist() for name, value in found.items()}


def plane(n: int = 700, seed: int = 0) -> Any:
    """Two arcs with noise, skewed along the second axis."""
    rng = np.random.default_rng(seed)
    angle, side = rng.uniform(0, np.pi, n), rng.choice([-1, 1], n)
    x = np.column_stack([side * np.cos(angle) + 0.5 * side, np.exp(side * np.sin(angle))])
    return x + 0.15 * rng.normal(size=x.shape)


def people(n: int = 700, seed: int = 0) -> pd.DataFrame:
    """A table with numbers, zeros that many rows share, rounded numbers, categories and gaps."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    size = rng.normal([1.0, 3.0, 4.0], [0.4, 0.6, 0.3], (n, 3))[np.arange(n), kind]
    income = np.exp(0.5 * size + 0.4 * rng.normal(size=n)) * (rng.random(n) > 0.2)
    frame = pd.DataFrame({"size": size, "income": income, "age": np.rint(30 + 8 * size + 6 * rng.normal(size=n))})
    frame = frame.mask(rng.random(frame.shape) < 0.08)
    return frame.assign(kind=np.array(["a", "b", "c"])[kind], level=rng.choice(["low", "high"], n))


def halves(table: Any) -> tuple[Any, Any]:
    """Training and test rows."""
    return table[:400], table[400:]


def density(table: Any, weighted: bool = False, **options: Any) -> float:
    train, test = halves(table)
    weights = np.random.default_rng(0).integers(0, 4, len(train)) if weighted else None
    options = {"n_init": 1, "random_state": 0} | options
    return float(RTBMDensity(**options).fit(train, sample_weight=weights).score(test))


def committee(table: Any, **options: Any) -> float:
    tried = [{"n_hidden": 1, "n_init": 1}, {"n_hidden": 1, "n_components": 4, "n_init": 1}]
    train, test = halves(table)
    return float(RTBMDensityCV(tried, cv=3, random_state=0, **options).fit(train).score(test))


def one() -> RTBMDensity:
    return RTBMDensity(1, n_components=4, n_init=1, random_state=0)


def regression(table: Any, target: int) -> float:
    train, test = (np.asarray(part, dtype=float) for part in halves(table))
    model = RTBMRegressor(one()).fit(np.delete(train, target, 1), train[:, target])
    return float(np.mean(model.log_prob(np.delete(test, target, 1), test[:, target])))


def coverage() -> float:
    """1 if 90 % intervals hold from 84 to 96 % of test rows."""
    train, test = halves(plane())
    low, high = RTBMRegressor(one()).fit(train[:, :1], train[:, 1]).predict_interval(test[:, :1], 0.9).T
    return float(0.84 <= np.mean((low <= test[:, 1]) & (test[:, 1] <= high)) <= 0.96)


def classification() -> float:
    train, test = halves(people())
    model = RTBMClassifier(random_state=0).fit(train.drop(columns="kind"), train["kind"])
    proba = model.predict_proba(test.drop(columns="kind"))
    places = [model.classes_.tolist().index(label) for label in test["kind"]]
    return float(np.log(proba[np.arange(len(test)), places]).mean())


def imputation() -> float:
    """Minus the root mean square of errors at hidden cells, in standard deviations."""
    train, test = halves(plane())
    hidden = np.where(np.arange(len(test))[:, None] % 2 == [0, 1], NAN, test)
    filled = RTBMImputer(one()).fit(train).transform(hidden)
    return -float(np.sqrt(np.mean(((filled - test) / test.std(0))[np.isnan(hidden)] ** 2)))


def outliers() -> float:
    """The area under the ROC curve for rows that are moved by the size of the arcs."""
    train, test = halves(plane())
    wrong = test + np.array([1.0, 0.0])
    detector = RTBMOutlierDetector(random_state=0).fit(train)
    return float(np.mean(detector.score_samples(test)[:, None] > detector.score_samples(wrong)))


def network(model: Any, is_classifier: bool = False) -> float:
    train, test = halves(plane())
    y = [(part[:, 1] > 1) * 1 if is_classifier else part[:, 1] for part in (train, test)]
    return float(model(random_state=0, max_iter=200).fit(train[:, :1], y[0]).score(test[:, :1], y[1]))


GAPS = np.where(np.random.default_rng(1).random((700, 2)) < 0.15, NAN, plane())
WIDE = np.random.default_rng(2).normal(size=(700, 12)) @ np.random.default_rng(3).normal(size=(12, 12)) * 0.5
CENTRES = 4 * np.random.default_rng(5).normal(size=(5, 6))
CLUSTERS = np.random.default_rng(4).normal(size=(700, 6)) + CENTRES[np.arange(700) % 5]
GAMMA = datasets.gamma.sample(700, seed=1)
QUALITY: dict[str, Callable[[], float]] = {
    "gamma 1": partial(density, GAMMA, n_hidden=1),
    "gamma 3": partial(density, GAMMA, n_hidden=3),
    "gamma em": partial(density, GAMMA, solver="em"),
    "gamma bounds": partial(density, GAMMA, bounds=(0, None)),
    "gamma weights": partial(density, GAMMA, weighted=True),
    "gamma smooth": partial(density, GAMMA, n_hidden=4, regularization=10.0),
    "plane 2": partial(density, plane()),
    "plane 4": partial(density, plane(), n_hidden=4),
    "plane II": partial(density, plane(), phase="II"),
    "plane cma": partial(density, plane()[:, :1], n_hidden=1, solver="cma", max_iter=150),
    "plane mixture": partial(density, plane(), n_hidden=1, n_components=8),
    "plane em mixture": partial(density, plane(), n_components=4, solver="em"),
    "plane weights": partial(density, plane(), n_hidden=1, n_components=4, weighted=True),
    "plane power": partial(density, plane(), margins="yeo-johnson", n_components=3),
    "plane learned": partial(density, plane(), margins="learned", n_components=3),
    "plane validation": partial(density, plane(), n_components=3, validation_fraction=0.2),
    "gaps 2": partial(density, GAPS),
    "gaps mixture": partial(density, GAPS, n_hidden=1, n_components=6),
    "wide": partial(density, WIDE, n_hidden=1),
    "wide mixture": partial(density, WIDE, n_hidden=1, n_components=3, regularization=10.0),
    "clusters": partial(density, CLUSTERS, n_hidden=1, n_components=5),
    "people": partial(density, people(), n_hidden=1, n_components=4),
    "people 1": partial(density, people(), n_hidden=1),
    "people power": partial(density, people(), n_hidden=1, n_components=4, margins="yeo-johnson"),
    "people weights": partial(density, people(), n_hidden=1, n_components=4, weighted=True),
    "people logarithm": partial(density, people()[["income", "kind"]], n_hidden=1, n_components=3, margins="log"),
    "latent classes": partial(density, people()[["kind", "level"]], n_components=2),
    "committee gamma": partial(committee, GAMMA),
    "committee plane": partial(committee, plane()),
    "committee gaps": partial(committee, GAPS),
    "committee people": partial(committee, people()),
    "regression plane": partial(regression, plane(), 1),
    "regression gaps": partial(regression, np.column_stack([GAPS[:, 0], plane()]), 2),
    "regression coverage": coverage,
    "classification": classification,
    "imputation": imputation,
    "outliers": outliers,
    "network regression": partial(network, ThetaNetRegressor),
    "network classification": partial(network, ThetaNetClassifier, is_classifier=True),
}
COMMITTEES = {name for name in QUALITY if name.startswith("committee")} | {"classification", "outliers"}
"""Those that a committee or held-out scores decide."""

UNSTEADY = {"plane cma", "network regression", "network classification"}
"""Those whose paths magnify the last digits, so that processors differ."""


if __name__ == "__main__":
    torch.set_num_threads(1)
    quality = {name: round(score(), 6) for name, score in QUALITY.items()}
    text = json.dumps({"exact": exact(), "quality": quality})
    PATH.write_text(text.replace('], "', '],\n"') + "\n", encoding="utf-8")
