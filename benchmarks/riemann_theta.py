"""The complex theta function beside FLINT's acb_theta: single values, all characteristics, many points, small Im Ω.

    python benchmarks/riemann_theta.py --output build/riemann_theta.json

One thread. Times are the best of several runs, after one to warm up, and include all lattice work. FLINT runs at 53
bits and returns all characteristics, because it offers only this; ours are float64 with tolerance 1e-12. "Error" is the
largest of a few points, of w = θ·exp(−u), against FLINT at 600 bits. Ω = X + Xᵀ + i(YYᵀ + ½I) with X and Y uniform in
[−1, 1]; "badly reduced" is Ω with 1e-4 of its imaginary part, where |w| reaches 10^g. FLINT takes minutes for g = 6, so
it is left out there.
"""

import argparse
import json
import math
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flint
import numpy as np
import torch
from flint import acb, acb_mat
from rich.console import Console
from rich.table import Table

from matrices import typical
from rtbm import TooManyTermsError, __version__, riemann_theta, riemann_theta_characteristics, siegel_reduce
from rtbm.theta import complex as complex_theta
from rtbm.theta.modular import Transformation
from theta import best_time

LARGEST_FOR_FLINT = 5
"""The largest g at which FLINT runs: beyond, one value takes a minute or more."""


def make_problem(g: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """z (points, g), in the first cell of periods but for Re Ω, and Ω (g, g): 10,000 points, or 500 beyond g = 4."""
    rng, points = np.random.default_rng(g), 10_000 if g <= 4 else 500
    X = rng.uniform(-1, 1, (g, g))
    omega = X + X.T + 1j * scale * typical(g)
    return rng.uniform(-0.5, 0.5, (points, g)) + 1j * rng.uniform(-0.5, 0.5, (points, g)) @ omega.imag, omega


def flint_values(z: np.ndarray, omega: np.ndarray, bits: int = 53) -> list[acb]:
    """acb_theta at one point: all characteristics."""
    flint.ctx.prec = bits
    tau, column = (
        acb_mat(len(z), len(x.flat) // len(z), [acb(float(v.real), float(v.imag)) for v in x.flat]) for x in (omega, z)
    )
    return tau.theta(column).entries()


def error(z: np.ndarray, omega: np.ndarray) -> float:
    """The largest error of w over these points and all characteristics, those of `riemann_theta` included."""
    u, w = riemann_theta_characteristics(z, omega, parts=True)
    alone = riemann_theta(z, omega, parts=True)[1]
    largest = 0.0
    for i in range(len(z)):
        exact = flint_values(z[i], omega, 600)
        values = np.array([complex((v * acb(-float(u[i])).exp()).mid()) for v in exact])
        largest = max(largest, abs(values - w[i].numpy()).max(), abs(values[0] - complex(alone[i])))
    return float(largest)


def expected_terms(omega: np.ndarray) -> float:
    """How many terms a direct sum has."""
    zero = torch.zeros(1, 2 * len(omega), dtype=torch.float64)
    return Transformation(torch.tensor(omega), zero, 1e-12, 0, False).series.expected


def without_reduction(function: Callable[[], Any]) -> float:
    """The time of a call that sums directly, or infinity if there are too many terms."""
    few, complex_theta.FEW_TERMS = complex_theta.FEW_TERMS, math.inf
    try:
        return best_time(function, 3)
    except TooManyTermsError:
        return math.inf
    finally:
        complex_theta.FEW_TERMS = few


def bench(g: int, scale: float) -> dict[str, float]:
    """One Ω: time for one point and many, one characteristic and all, and the error."""
    z, omega = make_problem(g, scale)
    points = torch.tensor(z)
    many = best_time(lambda: riemann_theta(points, omega, parts=True), 3) / len(z)
    few = points[: 500 if g <= 4 else 20]
    every = best_time(lambda: riemann_theta_characteristics(few, omega, parts=True), 3) / len(few)
    figures = {
        "terms": expected_terms(omega),
        "one value (ms)": best_time(lambda: riemann_theta(z[0], omega, parts=True)) * 1e3,
        "all characteristics (ms)": best_time(lambda: riemann_theta_characteristics(z[0], omega, parts=True)) * 1e3,
        "many points (µs/point)": many * 1e6,
        "many points, all characteristics (µs/point)": every * 1e6,
    }
    if g <= LARGEST_FOR_FLINT:
        theirs = best_time(lambda: flint_values(z[0], omega), 3)
        figures["FLINT, all characteristics (ms)"] = theirs * 1e3
        figures["many points, speedup over FLINT"] = theirs / many
        figures["many points, all characteristics, speedup over FLINT"] = theirs / every
        figures["error"] = error(z[: 5 if g <= 4 else 1], omega)
    if scale < 1:
        figures["terms after reduction"] = expected_terms(siegel_reduce(omega)[0].numpy())
        direct = without_reduction(lambda: riemann_theta(z[0], omega, parts=True))
        figures["one value without reduction (ms)"] = direct * 1e3
    return figures


def main() -> None:
    """Run everything, print a table and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/riemann_theta.json"))
    parser.add_argument("--largest", type=int, default=6, help="the largest g")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {
        f"{name} g={g}": bench(g, scale)
        for name, scale in (("typical", 1.0), ("badly reduced", 1e-4))
        for g in range(1, options.largest + 1)
    }
    table = Table("case", "figure", "measured", title="θ(z|Ω) on one CPU thread, float64, tolerance 1e-12")
    for row, figures in results.items():
        for name, value in figures.items():
            table.add_row(row, name, f"{value:.4g}")
        table.add_section()
    Console(width=120).print(table)
    about = {"rtbm": __version__, "torch": torch.__version__, "machine": platform.machine()}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"about": about, "results": results}, indent=2))
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
