"""The command `python -m experiments`: run experiments, and write a report of their numbers beside the paper's."""

import contextlib
import datetime
import io
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import joblib
import matplotlib
import matplotlib.pyplot as plt
import typer
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from experiments import MODULES, load_experiments, report
from experiments.experiment import Job, ResultTable
from experiments.runner import Part, Parts, Run, fingerprint, run_jobs, take_parts, versions
from rtbm.errors import FileError
from rtbm.output import counted
from rtbm.paths import write_whole

MIN_WIDTH = 126
"""Fewest columns of the console; a narrower one would wrap verdicts."""
RESULT_FOLDERS = (Path("build/paper"), Path("build/paper-quick"))
"""Where results of full and of quick runs go by default."""
PUBLISHED = Path(__file__).parent.parent / "docs" / "reproduction" / "results"
"""Where the documents have the tables of published runs."""
PARTS_FOLDER = "parts"
"""Subfolder for the results of finished jobs."""


class Options(NamedTuple):
    """The options of the command."""

    seeds: int | None
    quick: bool
    fresh: bool
    n_jobs: int
    folder: Path
    publish: bool = False

    def command(self, name: str) -> str:
        """The command that does the same for one experiment."""
        words = ["python -m experiments", name] + ["--quick"] * self.quick
        return " ".join(words + ([f"--seeds {self.seeds}"] if self.seeds else []))

    def parts_folder(self, name: str) -> Path:
        """Where the finished jobs of an experiment are kept."""
        return self.folder / PARTS_FOLDER / (f"{name}-quick" if self.quick else name)

    def run(self, name: str) -> Run:
        """The run of an experiment. Experiments with one seed always take one."""
        experiment = load_experiments()[name]
        usual = experiment.seeds[self.quick]
        seeds = usual if experiment.seeds[0] == 1 else self.seeds or usual
        return Run(experiment, seeds, self.quick, Parts(self.parts_folder(name)))


def reproduce_experiments(names: Sequence[str], options: Options) -> None:
    """Run experiments, print their tables and verdicts, and write numbers, pictures and the report into a folder."""
    matplotlib.use("Agg")
    _check_folder(options.folder)
    console = Console(markup=False, highlight=False, width=max(MIN_WIDTH, Console().width))
    chosen = list(names) or list(load_experiments())
    if options.fresh:
        for name in chosen:
            _remove(options.parts_folder(name))
    runs = {name: options.run(name) for name in chosen}
    missing = {name: run.missing() for name, run in runs.items()}
    _announce(runs, missing, options.n_jobs, console)
    results = run_jobs([(job, runs[name].parts) for name in chosen for job in missing[name]], options.n_jobs)
    for name, run in runs.items():
        _reproduce(name, run, missing[name], results, options, console)
        path = _write_report(options.folder, console)
    console.print(f"report: {path}", soft_wrap=True)


def _announce(runs: dict[str, Run], missing: dict[str, list[Job]], n_jobs: int, console: Console) -> None:
    """Print the number of jobs and the time that they will take."""
    processes, total = joblib.effective_n_jobs(n_jobs), 0.0
    for name, run in runs.items():
        left = len(missing[name])
        seconds = run.expected_seconds(left, processes)
        count = f"{left} of {len(run.jobs())} jobs to run"
        console.print(f"{name:13s}{counted(run.seeds, 'seed'):>9s}   {count:24s} about {report.duration(seconds)}")
        total += seconds
    text = f"{processes} process{'es' * (processes > 1)}"
    console.print(f"together about {report.duration(total)} with {text}, as measured in 2026")


def _reproduce(
    name: str, run: Run, missing: list[Job], results: Iterator[Part], options: Options, console: Console
) -> None:
    """Wait for the missing jobs of an experiment, then print and write its results."""
    with _progress(name, len(missing)) as advance:
        new = take_parts(results, missing, advance)
    outcome, seconds = run.collect(new)
    record = {
        "experiment": name,
        "command": options.command(name),
        "seeds": f"0 to {run.seeds - 1}" if run.seeds > 1 else "0",
        "seconds": seconds,
        "finished": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "versions": versions(),
        "fingerprint": fingerprint(),
        "outcome": outcome,
    }
    for table in run.experiment.tables(outcome):
        _print_table(table, console)
    for verdict in run.experiment.judge(outcome):
        console.print(f"{verdict.status}: {verdict.text}")
    for picture in run.experiment.pictures:
        write_whole(report.picture_path(options.folder, name, picture), _png(picture.draw(outcome)))
    write_whole(options.folder / f"{name}.json", json.dumps(record).encode())
    if options.publish:
        PUBLISHED.mkdir(parents=True, exist_ok=True)
        write_whole(PUBLISHED / f"{name}.md", report.to_markdown(run.experiment, record).encode())


def _write_report(folder: Path, console: Console) -> Path:
    sections, stale = report.read_sections(folder)
    write_whole(folder / report.PAGE, report.render(sections).encode())
    if stale:
        console.print(f"not in the report, since other code made it or a file is missing: {', '.join(stale)}")
    return folder / report.PAGE


def _png(figure: Figure) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    plt.close(figure)
    return picture.getvalue()


def _check_folder(folder: Path) -> None:
    """Raise an error before the work if results cannot be written."""
    for place in (folder, folder / PARTS_FOLDER):
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as error:
            raise FileError(f"--output {place}: not a folder that can be written to ({error.strerror})") from None


def _remove(folder: Path) -> None:
    """Remove the results of an earlier run."""
    try:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
    except OSError as error:
        raise FileError(f"--fresh: {folder} cannot be removed ({error.strerror or error})") from None


@contextlib.contextmanager
def _progress(name: str, total: int) -> Any:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total)
        yield lambda key: bar.update(task, advance=1, description=f"{name}: {key}"[:50])


def _print_table(table: ResultTable, console: Console) -> None:
    """Print a table in its full width, since a number that is cut off is a wrong number."""
    result = Table(title=table.title, title_justify="left")
    for i, name in enumerate(table.columns):
        result.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    for row in table.rows:
        result.add_row(*row)
    natural = console.measure(result, options=console.options.update_width(10_000)).maximum
    Console(markup=False, width=max(console.width, natural)).print(result)


def main(
    experiment: Annotated[
        Literal[(*MODULES, "all")],  # type: ignore[valid-type]
        typer.Argument(help="The experiment, or all of them."),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds, starts and iterations.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=2, help="Seeds or splits; each experiment has its own default.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A folder for report.html, numbers and pictures; build/paper or build/paper-quick."
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run finished jobs again, too.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processes; -1 for one for each core.")] = -1,
    publish: Annotated[bool, typer.Option("--publish", help="Write verdicts and tables into the documents.")] = False,
) -> None:
    """Run the paper's experiments, and write a report.

    The report is one page, report.html, of all results in the folder beside the paper's numbers and figures. An
    interrupted run continues where it stopped.
    """
    if jobs == 0:
        raise typer.BadParameter("must be a number other than 0", param_hint="--jobs")
    if publish and quick:
        raise typer.BadParameter("the documents have full runs only", param_hint="--publish")
    names = [] if experiment == "all" else [experiment]
    reproduce_experiments(names, Options(seeds, quick, fresh, jobs, output or RESULT_FOLDERS[quick], publish))


app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command()(main)

if __name__ == "__main__":
    app(prog_name="python -m experiments")
