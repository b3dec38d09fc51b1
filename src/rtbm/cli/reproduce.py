"""The command `rtbm reproduce`: run the paper's experiments, and show their numbers beside the paper's."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from rtbm.files import write_whole
from rtbm.version import __version__

WIDTH = 120
"""The least number of columns for tables."""


def reproduce_experiment(name: str, seeds: int | None, quick: bool, n_jobs: int | None, folder: Path) -> None:
    """Run one experiment, print its tables and verdicts, and write NAME.json and NAME.png into a folder."""
    import matplotlib

    matplotlib.use("Agg")
    from rtbm.paper import EXPERIMENTS

    experiment = EXPERIMENTS[name]
    count = seeds or (experiment.quick_seeds if quick else experiment.seeds)
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(markup=False, width=max(WIDTH, Console().width))
    console.print(f"{experiment.title}: {count} seeds", highlight=False)
    started = time.perf_counter()
    with _progress(experiment.steps(count, quick)) as advance:
        outcome = experiment.run(count, quick, n_jobs, advance)
    seconds = time.perf_counter() - started
    for table in experiment.tables(outcome):
        console.print(_as_rich(table))
    for line in experiment.verdicts(outcome):
        console.print(line, highlight=False)
    report = {"experiment": name, "library": __version__, "seconds": seconds, **outcome}
    figure = experiment.draw(outcome)
    write_whole(folder / f"{name}.json", json.dumps(report).encode())
    figure.savefig(folder / f"{name}.png", dpi=120)
    console.print(f"{seconds:.0f} s; {folder / name}.json, {folder / name}.png", highlight=False)


@contextlib.contextmanager
def _progress(total: int) -> Any:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("running", total=total)
        yield lambda name: bar.update(task, advance=1, description=name[:40])


def _as_rich(table: Any) -> Table:
    result = Table(title=table.title, title_justify="left")
    for i, name in enumerate(table.columns):
        result.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    for row in table.rows:
        result.add_row(*row)
    return result
