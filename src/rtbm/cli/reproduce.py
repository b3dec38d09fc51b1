"""The command `rtbm reproduce`: run the paper's experiments, and write a report of their numbers beside the paper's."""

import contextlib
import datetime
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import joblib
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from rtbm.errors import FileError
from rtbm.paths import write_whole

WIDTH = 126
"""The least number of columns for tables."""
FOLDERS = {False: Path("build/paper"), True: Path("build/paper-quick")}
"""Where results go by default, of full and of quick runs."""
PARTS = "parts"


class Options(NamedTuple):
    """What the command was asked for."""

    seeds: int | None
    quick: bool
    fresh: bool
    n_jobs: int
    folder: Path

    def command(self, name: str) -> str:
        """The command that does the same for one experiment."""
        words = ["rtbm reproduce", name] + ["--quick"] * self.quick
        return " ".join(words + ([f"--seeds {self.seeds}"] if self.seeds else []))


def reproduce_experiments(names: list[str], options: Options) -> None:
    """Run experiments, print their tables and verdicts, and write numbers, pictures and the report into a folder."""
    import matplotlib

    matplotlib.use("Agg")
    from rtbm.paper import EXPERIMENTS
    from rtbm.paper.runner import Parts, run_jobs

    _check_folder(options.folder)
    console = Console(markup=False, width=max(WIDTH, Console().width))
    chosen = names or list(EXPERIMENTS)
    if options.fresh:
        for name in chosen:
            _remove(_parts_folder(name, options))
    missing = {name: _unfinished(name, options) for name in chosen}
    _announce(missing, options, console)
    jobs = [(job, Parts(_parts_folder(name, options))) for name in chosen for job in missing[name]]
    results = run_jobs(jobs, options.n_jobs)
    for name in chosen:
        _reproduce(name, missing[name], results, options, console)
        path = _write_report(options.folder, console)
    console.print(f"report: {path}", highlight=False, soft_wrap=True)


def _unfinished(name: str, options: Options) -> list[Any]:
    """The jobs of an experiment that have to run."""
    from rtbm.paper import EXPERIMENTS
    from rtbm.paper.runner import Parts, unfinished

    experiment, parts = EXPERIMENTS[name], Parts(_parts_folder(name, options))
    return unfinished(experiment, _seeds(experiment, options), options.quick, parts)


def _announce(missing: dict[str, list[Any]], options: Options, console: Console) -> None:
    """Say before the work how much there is, and how long it will take."""
    from rtbm.paper import EXPERIMENTS
    from rtbm.paper.report import duration
    from rtbm.paper.runner import expected_seconds

    processes, total = joblib.effective_n_jobs(options.n_jobs), 0.0
    for name, jobs in missing.items():
        experiment, left = EXPERIMENTS[name], len(jobs)
        seeds = _seeds(experiment, options)
        seconds = expected_seconds(experiment, seeds, options.quick, left, processes)
        count = f"{left} of {len(experiment.jobs(seeds, options.quick))} jobs to run"
        console.print(
            f"{name:13s}{_number_of_seeds(seeds):>9s}   {count:24s} about {duration(seconds)}", highlight=False
        )
        total += seconds
    console.print(
        f"together about {duration(total)} with {processes} process{'es' * (processes > 1)}, as measured in 2026",
        highlight=False,
    )


def _reproduce(name: str, missing: list[Any], results: Iterator[Any], options: Options, console: Console) -> None:
    from rtbm.paper import EXPERIMENTS
    from rtbm.paper.report import picture_path
    from rtbm.paper.runner import Parts, collect, fingerprint, take, versions

    experiment, folder = EXPERIMENTS[name], options.folder
    seeds, parts = _seeds(experiment, options), Parts(_parts_folder(name, options))
    with _progress(name, len(missing)) as advance:
        new = take(results, missing, advance)
    outcome, seconds = collect(experiment, seeds, options.quick, new, parts)
    record = {
        "experiment": name,
        "command": options.command(name),
        "seeds": f"0 to {seeds - 1}" if seeds > 1 else "0",
        "seconds": seconds,
        "finished": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "versions": versions(),
        "fingerprint": fingerprint(),
        "outcome": outcome,
    }
    for table in experiment.tables(outcome):
        _print_table(table, console)
    for verdict in experiment.verdicts(outcome):
        console.print(f"{verdict.status}: {verdict.text}", highlight=False)
    for picture in experiment.pictures:
        write_whole(picture_path(folder, name, picture), _png(picture.draw(outcome)))
    write_whole(folder / f"{name}.json", json.dumps(record).encode())


def _write_report(folder: Path, console: Console) -> Path:
    from rtbm.paper.report import PAGE, read_sections, render

    sections, stale = read_sections(folder)
    write_whole(folder / PAGE, render(sections).encode())
    if stale:
        console.print(
            f"not in the report, since other code made it or a file is missing: {', '.join(stale)}", highlight=False
        )
    return folder / PAGE


def _seeds(experiment: Any, options: Options) -> int:
    """As many as asked for, and else as the experiment takes; those with one seed take one."""
    usual = experiment.quick_seeds if options.quick else experiment.seeds
    return usual if experiment.seeds == 1 else options.seeds or usual


def _number_of_seeds(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def _parts_folder(name: str, options: Options) -> Path:
    return options.folder / PARTS / (f"{name}-quick" if options.quick else name)


def _png(figure: Any) -> bytes:
    import matplotlib.pyplot as plt

    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    plt.close(figure)
    return picture.getvalue()


def _check_folder(folder: Path) -> None:
    """Find out before the work whether results can be written."""
    for place in (folder, folder / PARTS):
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as error:
            raise FileError(f"--output {place}: not a folder that can be written to ({error.strerror})") from None


def _remove(folder: Path) -> None:
    """Remove the results of an earlier run."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise FileError(f"--fresh: {folder} cannot be removed ({error.strerror or error})") from None


@contextlib.contextmanager
def _progress(name: str, total: int) -> Any:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total)
        yield lambda key: bar.update(task, advance=1, description=f"{name}: {key}"[:50])


def _print_table(table: Any, console: Console) -> None:
    """Print a table in its full width: a number that is cut off is a wrong number."""
    natural = 1 + sum(3 + max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True))
    result = Table(title=table.title, title_justify="left")
    for i, name in enumerate(table.columns):
        result.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    for row in table.rows:
        result.add_row(*row)
    Console(markup=False, width=max(console.width, natural)).print(result)
