"""Check theta functions on fresh random hard cases against FLINT and exact sums, and fail beyond the promise.

    python tests/certify.py --cases 10000 --jobs 2

Values in both phases are judged by FLINT, moments and gradients by sums of exact fractions with 50 digits, and the
complex function, with real characteristics and small Im Ω, by FLINT again. The families are those of the tests, with
new seeds. The worst case of each kind is printed as a line of Python.
"""

import argparse
import time
import warnings
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from joblib import Parallel, delayed

from families import matrices, problems
from oracle import exact_moments, flint_log_theta, flint_part
from rtbm import log_theta, riemann_theta, theta_moments
from tolerances import LAST_PLACES, MOMENTS, allowed

SHARES = {1: 0.35, 2: 0.35, 3: 0.25, 4: 0.05}
"""The share of the cases for each number of coordinates; FLINT takes 0.2 s for a value at g = 4."""
BATCH = 50
"""Cases of one job, which has a seed of its own."""


class Case(NamedTuple):
    """The error of a case in units of what is promised, and a line of Python that repeats it."""

    error: float
    line: str


def check_value(z: np.ndarray, Q: np.ndarray, phase: str) -> Case:
    """log θ̃ against FLINT."""
    expected = flint_log_theta(z, Q, phase)
    error = abs(float(log_theta(z, Q, phase=phase)) - expected) / allowed(expected)
    return Case(error, f"log_theta({z.tolist()}, {Q.tolist()}, phase={phase!r})  # {expected!r}")


def check_moments(z: np.ndarray, Q: np.ndarray) -> Case:
    """Mean, covariance and the gradients in z and Q against exact sums, in units of their natural size."""
    _, mean, covariance, _, size = exact_moments(z, Q)
    found = theta_moments(z, Q, order=2)
    inputs = [torch.tensor(array, requires_grad=True) for array in (z, Q)]
    by_z, by_Q = torch.autograd.grad(log_theta(*inputs), inputs)
    second = covariance + np.outer(mean, mean)
    scale, places = np.sqrt(np.diag(second)) + size, LAST_PLACES * np.spacing(np.abs(mean))
    error = max(
        *(np.abs(first.numpy() - mean) / (MOMENTS * size + places) for first in (found.mean, by_z)),
        np.abs(found.covariance.numpy() - covariance) / (MOMENTS * np.outer(size, size)),
        np.abs(by_Q.numpy() + 0.5 * second) / (MOMENTS * np.outer(scale, scale)),
        key=np.max,
    )
    return Case(float(error.max()), f"theta_moments({z.tolist()}, {Q.tolist()}, order=2)")


def check_complex(generator: np.random.Generator, g: int) -> Case:
    """θ[α,β](z|Ω)·exp(−u) against FLINT, for Im Ω down to 1e-4 and Re Ω up to 1e3."""
    X = generator.normal(size=(g, g))
    imaginary = 10.0 ** generator.uniform(-4, 1) * (X @ X.T + 0.5 * np.eye(g))
    real = 10.0 ** generator.uniform(-1, 3) * generator.normal(size=(g, g))
    omega = (real + real.T) / 2 + 1j * (imaginary + imaginary.T) / 2
    z = generator.normal(size=g) + 1j * imaginary @ generator.normal(size=g)
    alpha, beta = generator.uniform(0, 1, (2, g))
    expected = flint_part(z, omega, alpha, beta)
    _, found = riemann_theta(z, omega, characteristic=(alpha, beta), parts=True)
    size = max(1.0, float(np.linalg.det(omega.imag)) ** -0.25)  # what w can reach
    error = abs(complex(found) - expected) / (1e-11 * size)
    arguments = f"{z.tolist()}, {omega.tolist()}, characteristic={(alpha.tolist(), beta.tolist())}, parts=True"
    return Case(error, f"riemann_theta({arguments})  # {expected!r}")


def run_batch(g: int, number: int) -> dict[str, list[Case]]:
    """The cases of one seed: most are values, a quarter moments, and a quarter complex."""
    torch.set_num_threads(1)
    found: dict[str, list[Case]] = {"value": [], "moments": [], "complex": []}
    generator = np.random.default_rng(number)

    @seed(number)
    @settings(max_examples=BATCH // 2, phases=[Phase.generate], deadline=None, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(problems(g))
    def draw(problem: tuple[np.ndarray, np.ndarray, str]) -> None:
        found["value"].append(check_value(*problem))

    @seed(number + 1)
    @settings(max_examples=BATCH // 4, phases=[Phase.generate], deadline=None, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(matrices(g, smallest=0.0))  # softer ones take the exact sums too long
    def draw_moments(Q: np.ndarray) -> None:
        found["moments"].append(check_moments(generator.normal(size=g) * 10.0 ** generator.uniform(-1, 4), Q))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw()
        draw_moments()
        found["complex"] += [check_complex(generator, min(g, 3)) for _ in range(BATCH // 4)]
    return found


def main() -> None:
    """Run all batches, print the worst cases, and exit with 1 if one is beyond the promise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=None, help="a fresh one by default")
    options = parser.parse_args()
    first = int(time.time()) if options.seed is None else options.seed
    jobs = [(g, first + i) for g, share in SHARES.items() for i in range(max(1, round(share * options.cases / BATCH)))]
    begin = time.perf_counter()
    results = Parallel(options.jobs)(delayed(run_batch)(g, number) for g, number in jobs)
    is_kept = True
    for kind in ("value", "moments", "complex"):
        cases = [case for result in results for case in result[kind]]
        worst = max(cases, key=lambda case: case.error)
        is_kept = is_kept and worst.error <= 1
        print(f"{kind}: {len(cases)} cases, worst {worst.error:.2g} of what is promised\n    {worst.line}")
    print(f"seed {first}, {time.perf_counter() - begin:.0f} s, " + ("all kept" if is_kept else "BEYOND THE PROMISE"))
    raise SystemExit(not is_kept)


if __name__ == "__main__":
    main()
