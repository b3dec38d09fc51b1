"""Learning on a GPU: a step (value and gradient of the mean log-likelihood) and whole fits; build/learning_gpu.json.

python benchmarks/learning_gpu.py [--quick]
"""

import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.mixture import GaussianMixture

from rtbm.training import ArrayBlocks, Family, Objective, Prior, make_solver, make_start

QUICK = "--quick" in sys.argv


def data(n: int, d: int, device: str = "cuda") -> torch.Tensor:
    """Standardised draws of two overlapping Gaussians in each feature."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(n, d, dtype=torch.float64, device=device, generator=generator)
    x += 2.0 * (torch.rand(n, 1, dtype=torch.float64, device=device, generator=generator) < 0.4)
    return (x - x[:100_000].mean(0)) / x[:100_000].std(0)


def make_objective(x: torch.Tensor, n_hidden: int) -> tuple[Objective, torch.Tensor]:
    """The objective, and a start."""
    d = x.shape[1]
    family = Family(d, n_hidden)
    some = x[:5000].cpu().numpy()
    start = make_start(family, some, np.ones(len(some)), 0, 0)
    weights = torch.ones(len(x), dtype=torch.float64, device=x.device)
    return Objective(family, ArrayBlocks(x, weights), Prior(1.0, np.ones(d))), start.to(x.device)


def seconds(call, repeats: int = 5) -> float:
    """The least time of some calls."""
    call()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times)


def gaussian_mixture_step(n: int, d: int, k: int) -> float:
    """Seconds of an EM step of scikit-learn's GaussianMixture for a point, on the CPU of this machine."""
    x = data(n, d, "cpu").numpy()
    times = []
    for iterations in (2, 7):
        begin = time.perf_counter()
        GaussianMixture(k, max_iter=iterations, tol=0.0, init_params="random_from_data", random_state=0).fit(x)
        times.append(time.perf_counter() - begin)
    return (times[1] - times[0]) / 5 / n


def main() -> None:
    """Measure and write the figures."""
    import warnings

    warnings.filterwarnings("ignore")
    rows: list[dict[str, object]] = []
    mixtures = {d: gaussian_mixture_step(200_000, d, 4) for d in (1, 2)}
    cases = [(d, 2, n) for d in (1, 2) for n in (10**6, 10**7, 10**8)]
    cases += [(d, 4, n) for d in (1, 2) for n in (10**6, 10**7)]
    for d, g, n in cases:
        if QUICK and n > 10**7:
            continue
        objective, start = make_objective(data(n, d), g)
        step = seconds(lambda objective=objective, start=start: objective.with_gradient(start))
        row = {"machine": f"({d}, {g})", "points": n, "ms": 1e3 * step, "ns a point": 1e9 * step / n}
        row["times a step of GaussianMixture(4)"] = mixtures[d] * n / step
        rows.append(row)
        print({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
        del objective
        torch.cuda.empty_cache()
    for n in (10**3, 10**6, 10**7 if QUICK else 10**8):
        rows.append(whole_fit(n))
        print(rows[-1], flush=True)
    Path("build").mkdir(exist_ok=True)
    Path("build/learning_gpu.json").write_text(json.dumps(rows, indent=1))


def whole_fit(n: int) -> dict[str, object]:
    """A (1, 2) machine: a fit to 20,000 of the rows on the CPU, and on with all of them on the GPU."""
    times, value = {}, math.nan
    for device in ("cuda", "cpu") if n <= 10**6 else ("cuda",):
        x = data(n, 1).to(device)
        for _ in range(2):  # the first compiles
            torch.cuda.synchronize()
            begin = time.perf_counter()
            sample, start = make_objective(x[:20_000].cpu(), 2)
            first = make_solver("lbfgs", 1000, tol=1e-7).minimise(sample, start.cpu())
            objective, _ = make_objective(x, 2)
            result = make_solver("lbfgs", 1000, tol=1e-7).minimise(objective, first.vector.to(device))
            torch.cuda.synchronize()
            times[device], value = time.perf_counter() - begin, result.objective
    return {"whole fit of": n, "seconds": times, "objective": value, "steps with all points": result.evaluations}


if __name__ == "__main__":
    main()
