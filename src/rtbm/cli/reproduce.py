"""The command `rtbm reproduce`: run the paper's experiments, and show their numbers beside the paper's."""

import contextlib
import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from rtbm.errors import FileError
from rtbm.files import write_whole
from rtbm.version import __version__

WIDTH = 126
"""The least number of columns for tables."""


def reproduce_experiment(name: str, seeds: int | None, quick: bool, n_jobs: int | None, folder: Path) -> None:
    """Run one experiment, print its tables and verdicts, and write NAME.json and NAME.png into a folder."""
    import matplotlib

    matplotlib.use("Agg")
    from rtbm.paper import EXPERIMENTS

    experiment = EXPERIMENTS[name]
    count = seeds or (experiment.quick_seeds if quick else experiment.seeds)
    _check_folder(folder)
    console = Console(markup=False, width=max(WIDTH, Console().width))
    console.print(f"{experiment.title}: {count} seeds", highlight=False)
    started = time.perf_counter()
    with _progress(experiment.steps(count, quick)) as advance:
        outcome = experiment.run(count, quick, n_jobs, advance)
    seconds = time.perf_counter() - started
    report = {"experiment": name, "library": __version__, "seconds": seconds, **outcome}
    write_whole(folder / f"{name}.json", json.dumps(report).encode())
    for table in experiment.tables(outcome):
        console.print(_as_rich(table))
    for line in experiment.verdicts(outcome):
        console.print(line, highlight=False)
    picture = io.BytesIO()
    experiment.draw(outcome).savefig(picture, format="png", dpi=120)
    write_whole(folder / f"{name}.png", picture.getvalue())
    console.print(f"{seconds:.0f} s; {folder / name}.json, {folder / name}.png", highlight=False)


def _check_folder(folder: Path) -> None:
    """Find out before the work whether results can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FileError(f"--output {folder}: not a folder that can be written to ({error.strerror})") from None


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
