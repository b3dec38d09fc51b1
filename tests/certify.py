"""Check theta functions on fresh random hard cases against FLINT, and fail beyond the promise.

    python tests/certify.py --cases 10000 --jobs 2

There are values, moments and gradients of the real function in both phases, and values of the complex function with
real characteristics and small Im Ω. The families are those of the tests, with new seeds. The worst case of each kind is
printed as a line of Python.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from joblib import Parallel, delayed

from families import problems
from oracle import flint_log_theta, flint_moments, flint_part
from rtbm import log_theta, riemann_theta, theta_moments
from tolerances import LAST_PLACES, MOMENTS, allowed

SHARES = {4: 0.35, 3: 0.3, 2: 0.2, 1: 0.15}
"""The share of the cases for each number of coordinates, the slowest first; g = 4 takes FLINT most of the time."""
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


def check_moments(z: np.ndarray, Q: np.ndarray, phase: str) -> Case:
    """The first two derivatives of log θ̃ in z, and the gradients by autograd in z and Q, against FLINT.

    In both phases, √(Q⁻¹)_ii is the natural size of a derivative by z_i: MOMENTS of it is allowed for the terms that
    are left out. Rounding changes the weights of the terms by a few last places of their exponents, relatively. This
    moves mean and covariance by as much of their spread, and it shows where large exponents tie. By the heat equation,
    the gradient in Q is ∓½(covariance + mean·meanᵀ).
    """
    mean, covariance, depth = flint_moments(z, Q, phase)
    by_matrix = (-0.5 if phase == "I" else 0.5) * (covariance + np.outer(mean, mean))
    found = theta_moments(z, Q, phase=phase, order=2)
    inputs = [torch.tensor(array, requires_grad=True) for array in (z, Q)]
    by_z, by_Q = torch.autograd.grad(log_theta(*inputs, phase=phase), inputs)

    size, places, rounding = np.sqrt(np.diag(np.linalg.inv(Q))), np.spacing(np.abs(mean)), np.spacing(4 * depth)
    spread = np.sqrt(np.abs(np.diag(covariance))) + size
    scale = np.sqrt(mean**2 + np.abs(np.diag(covariance))) + size
    allowed_mean = MOMENTS * size + LAST_PLACES * (places + rounding * spread)
    allowed_covariance = MOMENTS * np.outer(size, size) + LAST_PLACES * rounding * np.outer(spread, spread)
    errors = [
        *(np.abs(first.numpy() - mean) / allowed_mean for first in (found.mean, by_z)),
        np.abs(found.covariance.numpy() - covariance) / allowed_covariance,
        np.abs(by_Q.numpy() - by_matrix) / (MOMENTS * np.outer(scale, scale)),
    ]
    line = f"theta_moments({z.tolist()}, {Q.tolist()}, phase={phase!r})  # {mean.tolist()}, {covariance.tolist()}"
    return Case(float(np.max([error.max() for error in errors])), line)


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


def draw_cases(g: int, count: int, check: Callable[[np.ndarray, np.ndarray, str], Case], name: str) -> list[Case]:
    """Check so many problems of the tests' family, drawn with the seed `name`."""
    cases: list[Case] = []

    @seed(name)
    @settings(max_examples=count, phases=[Phase.generate], deadline=None, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(problems(g))
    def draw(problem: tuple[np.ndarray, np.ndarray, str]) -> None:
        cases.append(check(*problem))

    draw()
    return cases


def run_batch(g: int, number: int) -> dict[str, list[Case]]:
    """The cases of one seed: two fifths are values, two fifths moments and gradients, and a fifth is complex."""
    torch.set_num_threads(1)
    generator = np.random.default_rng(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "value": draw_cases(g, 2 * BATCH // 5, check_value, f"value {number}"),
            "moments": draw_cases(g, 2 * BATCH // 5, check_moments, f"moments {number}"),
            "complex": [check_complex(generator, min(g, 3)) for _ in range(BATCH // 5)],
        }


def main() -> None:
    """Run all batches, print the worst cases, and exit with 1 if one is beyond the promise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=None, help="a fresh one by default")
    options = parser.parse_args()
    first = int(time.time()) if options.seed is None else options.seed
    sizes = [g for g, share in SHARES.items() for _ in range(max(1, round(share * options.cases / BATCH)))]
    begin = time.perf_counter()
    results = Parallel(options.jobs)(delayed(run_batch)(g, number) for number, g in enumerate(sizes, first))
    is_kept = True
    for kind in ("value", "moments", "complex"):
        cases = [case for result in results for case in result[kind]]
        worst = max(cases, key=lambda case: np.inf if np.isnan(case.error) else case.error)
        is_kept = is_kept and worst.error <= 1
        print(f"{kind}: {len(cases)} cases, worst {worst.error:.2g} of what is promised\n    {worst.line}")
    print(f"seed {first}, {time.perf_counter() - begin:.0f} s, " + ("all kept" if is_kept else "BEYOND THE PROMISE"))
    raise SystemExit(not is_kept)


if __name__ == "__main__":
    main()
