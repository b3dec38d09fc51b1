"""Fits and predictions in one process for a given time, and how its memory grows.

    python benchmarks/soak.py --minutes 60
    python benchmarks/soak.py --minutes 60 --sessions 10      # the explorer, with pages that fit and move sliders

Growth is measured from a quarter of the time on, when kernels are compiled and caches are full. It reads /proc, so it
needs Linux.
"""

import argparse
import gc
import os
import re
import resource
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rtbm


def resident(process: int) -> float:
    """The memory of a process now, in MiB."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def rounds() -> Iterator[None]:
    """Fits and predictions, with fresh data in each round."""
    rng = np.random.default_rng(0)
    for number in range(10**9):
        X = np.column_stack([rng.gamma(2.0, size=300), rng.normal(size=300)])
        y = X[:, 0] + rng.normal(size=300)
        size = 1 + number % 2
        model = rtbm.RTBMDensity(size, n_components=size, n_init=1, fallback=None, random_state=number)
        model.fit(X)
        model.score_samples(X)
        model.sample(100)
        X[::3, 1] = np.nan
        model.impute(X)
        model.predict_mean(X, 1)
        rtbm.RTBMRegressor(rtbm.RTBMDensity(1, n_init=1, random_state=number)).fit(X, y).predict_interval(X)
        yield


def pages(n_sessions: int, port: int) -> Iterator[None]:
    """Sessions of the explorer at a port. In each round every session moves its sliders, and one is replaced."""
    import panel  # noqa: F401  # the client has to know its models
    from bokeh.client import pull_session
    from bokeh.models import Slider

    rng = np.random.default_rng(0)
    sessions: deque[Any] = deque()
    while True:
        while len(sessions) < n_sessions:
            sessions.append(pull_session(url=f"http://127.0.0.1:{port}/"))
        for session in sessions:
            sliders = [model for model in session.document.models if isinstance(model, Slider) and not model.disabled]
            for slider in sliders[:3]:
                steps = int((slider.end - slider.start) / slider.step)
                slider.value = slider.start + int(rng.integers(steps + 1)) * slider.step
            session.force_roundtrip()
        sessions.popleft().close()
        yield


def serve() -> tuple[subprocess.Popen[str], int]:
    """The explorer in a process of its own, and its port."""
    command = [sys.executable, "-c", "from rtbm.cli import main; main()", "explore", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        if found:
            return server, int(found.group(1))
    raise RuntimeError("the explorer did not start")


def soak(steps: Iterator[None], seconds: float, process: int) -> float:
    """Run steps for a time, and return by how many MiB the memory of a process grows after a quarter of it."""
    begin, first, shown, number = time.monotonic(), 0.0, 0.0, 0
    while (passed := time.monotonic() - begin) < seconds:
        next(steps)
        number += 1
        gc.collect()
        if not first and passed > seconds / 4:
            first = resident(process)
        if passed - shown >= seconds / 12:
            shown = passed
            print(f"{passed / 60:6.1f} min {number:6} rounds {resident(process):8.1f} MiB", flush=True)
    return resident(process) - (first or resident(process))


def main() -> None:
    """Soak, and fail if memory grows by more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--sessions", type=int, default=0, help="sessions of the explorer in place of fits")
    parser.add_argument("--limit", type=float, default=50.0, help="growth in MiB that is an error")
    options = parser.parse_args()
    seconds = 60 * options.minutes
    if options.sessions:
        server, port = serve()
        try:
            growth = soak(pages(options.sessions, port), seconds, server.pid)
        finally:
            server.terminate()
    else:
        growth = soak(rounds(), seconds, os.getpid())
    print(f"growth {growth:.1f} MiB in the last three quarters of {options.minutes:g} minutes")
    sys.exit(growth > options.limit)


if __name__ == "__main__":
    main()
