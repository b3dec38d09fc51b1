"""The commands `rtbm fit | score | sample | predict | impute | quantile | info | plot | explore`.

Exit codes: 0 for success, 1 for a failure, 2 for wrong usage. Modules that need numpy or torch are imported in the
functions that use them, so that help and usage errors appear at once.
"""

import contextlib
import io
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from rtbm.cli.arguments import (
    INPUT_FOLDER,
    PICTURE_FILES,
    ROW_FILES,
    STANDARD,
    Categorical,
    Columns,
    Data,
    DecimalPoint,
    Given,
    Header,
    Model,
    Needed,
    OptionalData,
    RowsOutput,
    Seed,
    Separator,
    bounds_of,
    by_column,
    check_output,
    check_share,
    chosen_columns,
    column_number,
    given_value,
    parse_bounds,
    parse_given,
    parse_probabilities,
)
from rtbm.errors import FileError, InvalidInputError, RTBMError
from rtbm.paths import existing_file, existing_table, printable, table_kind, write_whole

app: typer.Typer = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
console: Console = Console(markup=False, highlight=False, soft_wrap=True)
errors: Console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)

SolverName = Literal["lbfgs", "em", "cma"]
"""The keys of `rtbm.training.SOLVERS`, which needs torch."""
STREAMED_SOLVERS = ("lbfgs", "em")
"""Solvers for files that are read in blocks; others are refused with --stream."""
FEWEST_COMMITTEE_ROWS = 50
"""With fewer rows, and no size given, one machine is fitted: cross-validation could not tell sizes apart."""


def _version(show: bool) -> None:
    if show:
        from rtbm.version import __version__

        console.print(f"rtbm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Riemann-Theta Boltzmann machines: fit densities, and use them."""


@app.command()
def fit(
    data: Data = None,
    n_hidden: Annotated[
        int | None,
        typer.Option(
            "--n-hidden", "--hidden", min=1, help="The number of hidden units of each machine; 2 with --no-cv."
        ),
    ] = None,
    n_components: Annotated[
        int | None,
        typer.Option(
            "--n-components", "--components", min=1, help="The number of machines in the mixture; 1 with --no-cv."
        ),
    ] = None,
    cv: Annotated[
        bool | None,
        typer.Option(
            "--cv/--no-cv",
            help="Whether to fit a committee of machines, whose sizes cross-validation chooses; by default if there "
            "are 50 rows or more, and no size and no other option of a single fit is given.",
        ),
    ] = None,
    phase: Annotated[Literal["I", "II"], typer.Option(help="The phase in which parameters are shown.")] = "I",
    solver: Annotated[SolverName | None, typer.Option(help="How to fit; lbfgs by default.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to save the model.")] = Path("model.rtbm"),
    picture: Annotated[Path | None, typer.Option(help="Where to save a picture of the fit (.png, .pdf, .svg).")] = None,
    columns: Columns = None,
    categorical: Categorical = None,
    header: Header = None,
    separator: Separator = None,
    decimal: DecimalPoint = ".",
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            help="Bounds of all columns, as in 0:1, or 0: without an upper one; or of one column, as in age=0:120. May "
            "be given several times."
        ),
    ] = None,
    margins: Annotated[
        Literal["auto", "none", "log", "yeo-johnson", "learned"],
        typer.Option(
            help="How columns are mapped before the machines describe them: not at all, by powers, or by densities of "
            "their own; auto lets cross-validation choose, and is none for a single fit."
        ),
    ] = "auto",
    drop_constant: Annotated[bool, typer.Option("--drop-constant", help="Drop columns with only one value.")] = False,
    starts: Annotated[int | None, typer.Option(min=1, help="Starts of the solver; 8 by default.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="The most iterations.")] = None,
    regularization: Annotated[
        float | None, typer.Option(min=0, help="Strength of the prior against fine structure; 1 by default.")
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(callback=check_share, help="Share of the data for early stopping, between 0 and 1."),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Read the file (.npy, .parquet) in blocks, again in each step, with --solver lbfgs or em; by "
            "default if it holds more than 3·10⁷ numbers.",
        ),
    ] = False,
    jobs: Annotated[int | None, typer.Option(help="Starts that run at the same time (-1: one for each core).")] = None,
    device: Annotated[str | None, typer.Option(help="A torch device, as cuda.")] = None,
    seed: Seed = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")] = False,
) -> None:
    """Fit a density to data and save it.

    The density is a committee of machines, or one machine or mixture of the size given; one machine too if there are
    fewer than 50 rows. Columns of text are categories, and dates are days since the beginning of 1970. Existing files
    are replaced.

    Files that hold more than 3·10⁷ numbers (.npy, .parquet) need not fit into memory. Several processes share their
    rows: torchrun --nproc-per-node 4 -m rtbm fit large.parquet
    """
    check_output(output, "--output", None, data)
    check_output(picture, "--picture", PICTURE_FILES, data, output)
    limits = parse_bounds(bounds)
    options_given = {
        "n_hidden": n_hidden,
        "n_components": n_components,
        "solver": solver,
        "max_iter": iterations,
        "n_init": starts,
        "regularization": regularization,
        "validation_fraction": validation,
        "device": device,
    }
    options: Any = {name: value for name, value in options_given.items() if value is not None}
    text_format: Any = {"header": header, "separator": separator, "decimal": decimal}
    chosen = chosen_columns(columns, data, text_format)
    labels = chosen_columns(categorical, data, text_format, "--categorical") or []
    if stream and (data is None or (solver or "lbfgs") not in STREAMED_SOLVERS):
        raise typer.BadParameter("--stream needs a file and --solver lbfgs or em", param_hint="--stream")
    stream = stream or ((solver or "lbfgs") in STREAMED_SOLVERS and not cv and _is_large(data, chosen))
    if cv and (options or stream):
        raise typer.BadParameter("a committee takes no options of a single fit", param_hint="--cv")
    import numpy as np

    from rtbm.data_files import LABELS, FileData, FileRows, read_table
    from rtbm.datasets import gamma
    from rtbm.estimators import RTBMDensity, RTBMDensityCV
    from rtbm.output import summary_table
    from rtbm.persistence import save
    from rtbm.training.distributed import process_group, rank_and_world

    with process_group(device), contextlib.ExitStack() as context:
        rank, world = rank_and_world()
        if not quiet and rank == 0:
            context.enter_context(_telling_of_compilation())
        if stream:
            file = FileRows(data, chosen, labels=labels)
            found = FileData(np.empty((0, file.n_columns)), file.names, file.left_out, file.kinds)
        else:
            is_file = data is not None
            found = read_table(data, chosen, text=labels, **text_format) if is_file else FileData(gamma.sample(), None)
        n_columns = found.values.shape[1]
        categories = {column_number(name, found.names, n_columns, "--categorical") for name in labels}
        categories |= {i for i, kind in found.kinds.items() if kind in LABELS}
        names = found.names or [str(i) for i in range(n_columns)]
        shared: Any = {
            "phase": phase,
            "bounds": bounds_of(limits, found.names, n_columns),
            "categorical_features": [names[i] if stream and found.names else i for i in sorted(categories)] or "auto",
            "drop_constant": drop_constant,
            "n_jobs": jobs,
            "random_state": seed,
            "verbose": int(not quiet and rank == 0),
        }
        if cv is None:
            cv = not (options or stream or world > 1) and len(found.values) >= FEWEST_COMMITTEE_ROWS
        shared["margins"] = None if margins == "none" or (margins == "auto" and not cv) else margins
        model: Any = RTBMDensityCV(**shared) if cv else RTBMDensity(**shared, **options)
        if stream:
            model.fit(data, columns=chosen)
        else:
            with _columns_by_name(found.names):
                model.fit(found.values)
            model.summary_["log_likelihood"] = model.score(found.values)
            model.set_feature_names(found.names)
        model.summary_["left_out"] = dict(found.left_out)
        model.summary_["dates"] = [names[i] for i, kind in found.kinds.items() if kind == "dates"]
        if rank > 0:  # the first process prints and writes
            return
        save(model, output)
        if picture is not None:
            _draw(model, None if stream else found.values, picture)
        if not quiet:
            console.print(summary_table(model, "the fit"), soft_wrap=False)
            console.print(f"model: {output}" + (f", picture: {picture}" if picture else ""))


@app.command()
def score(
    model: Model,
    data: Needed,
    columns: Columns = None,
    header: Header = None,
    separator: Separator = None,
    decimal: DecimalPoint = ".",
    output: RowsOutput = None,
) -> None:
    """Print the mean log-likelihood of data.

    With --output, log P of each row is written too. If that is the screen (-), the mean goes to standard error.
    """
    check_output(output, "--output", ROW_FILES, data, model)
    fitted = _load(model)
    rows = _read_for(fitted, data, columns, header=header, separator=separator, decimal=decimal).values
    with _without_names(fitted):
        mean, log_prob = fitted.score(rows), None if output is None else fitted.score_samples(rows)[:, None]
    if output is not None:
        from rtbm.output import counted

        _write(output, log_prob, ["log_prob"], f"log P of {counted(len(rows), 'row')}", errors)
    (errors if output == STANDARD else console).print(f"{mean:.10g}")


@app.command()
def sample(
    model: Model,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="How many rows.")] = 1000,
    given: Given = None,
    output: RowsOutput = None,
    seed: Seed = 0,
) -> None:
    """Draw rows from a density.

    They are written to a file or, as CSV, to the screen. With --given, the other columns are drawn from their
    conditional distribution, and the rows have the given values too.
    """
    check_output(output, "--output", ROW_FILES, model)
    parsed = parse_given(given)
    whole = _load(model)
    fitted, known, left = _conditional(whole, parsed)
    from rtbm.cli.translation import as_cells, as_table
    from rtbm.output import counted

    draws, dates, decimals = fitted.sample(number, random_state=seed), _dates_of(whole), whole.columns_.decimals
    columns = [draws[name] for name in draws.columns] if hasattr(draws, "columns") else list(draws.T)
    drawn = dict(zip(left, columns, strict=True))
    columns = [drawn[i] if i in drawn else [known[i]] * number for i in range(whole.n_features_in_)]
    rows = as_table([as_cells(column, i in dates, decimals[i] == 0) for i, column in enumerate(columns)])
    _write(output, rows, _names_of(whole), counted(number, "row"))


@app.command()
def predict(
    model: Model,
    data: Needed,
    target: Annotated[str, typer.Option(help="The column to predict, by name or number from 0.")],
    quantiles: Annotated[
        str, typer.Option(help="Probabilities, as in 0.05,0.5,0.95, for a column of numbers.")
    ] = "0.05,0.5,0.95",
    columns: Columns = None,
    header: Header = None,
    separator: Separator = None,
    decimal: DecimalPoint = ".",
    output: RowsOutput = None,
) -> None:
    """Predict a column from the others.

    The result has the mean, the standard deviation and quantiles for each row; for a column of categories the likeliest
    level and the probability of each level. The column itself is not read, and a file with names may lack it. Missing
    values are integrated out.
    """
    check_output(output, "--output", ROW_FILES, data, model)
    levels = parse_probabilities(quantiles.split(","), "--quantiles")
    fitted = _load(model)
    number = _feature(fitted, target, "--target")
    text_format: Any = {"header": header, "separator": separator, "decimal": decimal}
    rows = _read_for(fitted, data, columns, number, **text_format).values
    from numpy import array, column_stack

    from rtbm.output import counted, level_text

    categories = fitted.categories_[number]
    with _without_names(fitted):
        if categories is None:
            names = ["mean", "std", *(f"quantile_{level:g}" for level in levels)]
            moments = fitted.predict_mean(rows, number, return_std=True)
            table = column_stack([*moments, fitted.predict_quantiles(rows, number, levels)])
        else:
            names = ["prediction", *(f"probability_{level_text(level)}" for level in categories)]
            probabilities = fitted.predict_proba(rows, number)
            likeliest = array(categories, dtype=object)[probabilities.argmax(axis=1)]
            table = column_stack([likeliest, probabilities])
    _write(output, table, names, f"{counted(len(rows), 'prediction')} of {target}")


@app.command()
def impute(
    model: Model,
    data: Needed,
    method: Annotated[
        Literal["mean", "sample"],
        typer.Option(help="The conditional mean or likeliest level, or a draw from the conditional density."),
    ] = "mean",
    columns: Columns = None,
    header: Header = None,
    separator: Separator = None,
    decimal: DecimalPoint = ".",
    output: RowsOutput = None,
    seed: Seed = 0,
) -> None:
    """Fill in missing values.

    The table is written to a file or, as CSV, to the screen. A table with names is written as it is, with all columns,
    and only gaps in columns of the model are filled. Without names, and in .npy files, it has the model's columns
    alone, as numbers.
    """
    check_output(output, "--output", ROW_FILES, data, model)
    fitted = _load(model)
    text_format: Any = {"header": header, "separator": separator, "decimal": decimal}
    found = _read_for(fitted, data, columns, **text_format)
    from rtbm.cli.translation import as_table, fill, find_gaps
    from rtbm.data_files import read_cells
    from rtbm.output import counted

    names, dates, rows, suffix = _names_of(fitted), _dates_of(fitted), found.values, output and output.suffix.lower()
    with _without_names(fitted):
        filled = fitted.impute(rows, method, random_state=seed)
    gaps = find_gaps(rows)
    what, is_whole = f"{counted(int(gaps.sum()), 'value')} filled in", found.names is not None and suffix != ".npy"
    if is_whole:
        has_types = suffix == ".parquet"
        texts = [name for i, name in enumerate(found.names) if not has_types or found.kinds.get(i) == "text"]
        table = read_cells(data, found.names, texts, **text_format)
        for i, name in enumerate(found.names):
            table[name] = fill(table[name], filled[:, i], gaps[:, i], i in dates, has_types)
        filled, names = as_table(table.values()), list(table)
    _write(output, filled, names, what if is_whole else f"{what}, with the model's columns alone")


@app.command()
def quantile(
    model: Model,
    probabilities: Annotated[list[str], typer.Argument(help="Probabilities, as in 0.05 0.5 0.95.")],
    feature: Annotated[
        str | None, typer.Option(help="The column, by name or number; needed if there are several.")
    ] = None,
    given: Given = None,
) -> None:
    """Print quantiles of a column.

    There is one on each line. With --given, they are those of the conditional distribution.
    """
    levels, known = parse_probabilities(probabilities, "PROBABILITIES"), parse_given(given)
    fitted = _load(model)
    column = None if feature is None else _feature(fitted, feature, "--feature")
    fitted, values, left = _conditional(fitted, known)
    if column in values:
        raise typer.BadParameter(f"{feature!r} has a given value", param_hint="--feature")
    if column is not None and len(left) > 1:
        fitted = fitted.marginal(left.index(column))
    if fitted.n_features_in_ != 1:
        raise typer.BadParameter(f"choose one of the {fitted.n_features_in_} columns", param_hint="--feature")
    if fitted.categories_[0] is not None:
        message = "categories have no quantiles: `rtbm predict` and `rtbm sample` are for them"
        raise typer.BadParameter(message, param_hint="--feature")
    for value in fitted.quantile(levels):
        console.print(f"{value:.10g}")


@app.command()
def info(model: Model) -> None:
    """Show what a model file holds."""
    fitted = _load(model, any_estimator=True)
    from rtbm.output import summary_table

    console.print(summary_table(fitted, str(model)), soft_wrap=False)


@app.command()
def plot(
    model: Model,
    data: OptionalData = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture (.png, .pdf, .svg).")] = Path("model.png"),
    columns: Columns = None,
    header: Header = None,
    separator: Separator = None,
    decimal: DecimalPoint = ".",
) -> None:
    """Draw a density.

    A picture in one dimension has a histogram and components, one in two dimensions contours and projections. It shows
    columns of numbers alone, and of these the numbers that are no atoms.
    """
    check_output(output, "--output", PICTURE_FILES, data, model)
    fitted = _load(model)
    text_format: Any = {"header": header, "separator": separator, "decimal": decimal}
    rows = None if data is None else _read_for(fitted, data, columns, **text_format).values
    _draw(fitted, rows, output)
    console.print(f"picture: {output}")


@app.command()
def explore(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA or MODEL",
            help="Data to fit (a .csv, .parquet or .npy file), or a model that `rtbm fit` has saved.",
        ),
    ] = None,
    header: Header = None,
    separator: Separator = None,
    decimal: DecimalPoint = ".",
    port: Annotated[
        int | None, typer.Option(min=1024, max=65535, help="The port of the page; by default one that is free.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Whether to open a browser.")] = True,
) -> None:
    """Open a page to play with.

    Move a machine by sliders, watch fits and networks learn, look at theta functions. The page is served on 127.0.0.1,
    to this machine alone, until Ctrl-C. It asks no other host, and keeps nothing that is dropped into it. It needs
    Panel, which the extra "explore" of this package brings.
    """
    if source is not None:
        (existing_file if table_kind(source) is None else existing_table)(source)
    from rtbm.explorer import serve

    serve(source, port, browser, header=header, separator=separator, decimal=decimal)


def _names_of(fitted: Any) -> list[str] | None:
    return [printable(name) for name in getattr(fitted, "feature_names_in_", [])] or None


def _feature(fitted: Any, text: str, option: str) -> int:
    """The number of a column of a model that an option gives by its name or its number."""
    return column_number(text, _names_of(fitted), fitted.n_features_in_, option)


def _dates_of(fitted: Any) -> set[int]:
    """The numbers of the columns of a model that were dates in the fit."""
    names, own, frame = _names_of(fitted), fitted.summary_.get("dates", []), fitted._frame
    columns = enumerate(names or map(str, range(fitted.n_features_in_)))
    return {i for i, name in columns if name in own or (frame is not None and frame.is_date(i))}


def _conditional(fitted: Any, given: list[tuple[str, str]]) -> tuple[Any, dict[int, Any], list[int]]:
    """The density given values of some columns; these, and those of constant columns; and the numbers of the others."""
    names = _names_of(fitted)
    texts = by_column(given, names, fitted.n_features_in_, "--given")
    columns = names or [str(i) for i in range(fitted.n_features_in_)]
    dates, levels = _dates_of(fitted), fitted.categories_
    known = {i: given_value(columns[i], text, levels[i], i in dates) for i, text in texts.items() if i is not None}
    if not known:
        return fitted, {}, list(range(fitted.n_features_in_))
    density, left = fitted.conditional(known), [i for i in fitted._kept.tolist() if i not in known]
    constants = {i: value for i, value in enumerate(fitted.constants_) if value == value}
    known |= {i: value if levels[i] is None else levels[i][int(value)] for i, value in constants.items()}
    identifiers = dict.fromkeys(set(range(fitted.n_features_in_)) - {*known, *left})
    return density, known | identifiers, left


def _is_large(path: Path | None, chosen: list[str] | None) -> bool:
    """Whether a file is too large for memory, and is read in blocks."""
    if path is None or table_kind(path) not in (".npy", ".parquet"):
        return False
    from rtbm.data_files import table_size
    from rtbm.estimators.checks import memory_limit

    size = table_size(path)
    n_columns = size.n_columns if chosen is None else len(chosen)
    return 8 * size.n_cells * n_columns > memory_limit() * size.n_columns


@contextlib.contextmanager
def _telling_of_compilation() -> Iterator[None]:
    """Say so, once, when numba begins to compile kernels: nothing else is shown until it is done."""
    try:
        from numba.core import event
    except ImportError:
        yield
        return

    class Note(event.Listener):
        is_said = False

        def on_start(self, event: Any) -> None:
            if not self.is_said:
                self.is_said = True
                errors.print("compiling kernels that are not on disk yet: the first fit takes up to a minute longer")

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Note()):
        yield


@contextlib.contextmanager
def _columns_by_name(names: list[str] | None) -> Iterator[None]:
    """Name columns and options of the command in errors and warnings about features and arguments."""

    def speak(message: Any) -> str:
        text = str(message).replace("drop_constant=True", "--drop-constant")
        if names is None:
            return text
        return re.sub(r"(?:feature|column) (\d+)", lambda m: f"column {names[int(m[1])]!r}", text)

    show = warnings.showwarning
    warnings.showwarning = lambda message, *rest: show(speak(message), *rest)
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(speak(error)) from None
    finally:
        warnings.showwarning = show


@contextlib.contextmanager
def _without_names(fitted: Any) -> Iterator[None]:
    """Let a model take arrays whose columns have been chosen by name. Messages still name them."""
    names = _names_of(fitted)
    fitted.set_feature_names(None)
    with _columns_by_name(names):
        yield


def _read_for(fitted: Any, data: Path, columns: list[str] | None, target: int | None = None, **text_format: Any) -> Any:
    """The columns of a file that a model was fitted to: by name if both have names, unless others are chosen.

    With names, the column with the number `target` is not read, and is NaN.
    """
    from numpy import insert, nan

    from rtbm.cli.translation import as_levels
    from rtbm.data_files import column_names, read_table

    names, chosen, place = _names_of(fitted), chosen_columns(columns, data, text_format), None
    needed = [name for i, name in enumerate(names or []) if i != target]
    is_own = chosen is None or sorted(chosen) in (sorted(needed), sorted(names or []))
    if needed and is_own and column_names(data, **text_format) is not None:
        chosen, place = needed, target
    levels = [own for i, own in enumerate(fitted.categories_) if i != place]
    texts = {i for i, own in enumerate(levels) if own == [] or any(isinstance(level, str) for level in own or ())}
    read = chosen or [str(i) for i in range(len(levels))]
    found = read_table(data, chosen, text={name for i, name in enumerate(read) if i in texts}, **text_format)
    rows, width = found.values, found.values.shape[1] + (place is not None)
    if width != fitted.n_features_in_:
        raise FileError(
            f"{data}: has {width} columns, and the model {fitted.n_features_in_}: choose them with --columns"
        )
    wrong = [repr(read[i]) for i, kind in found.kinds.items() if kind == "text" and i not in texts]
    if wrong:
        raise FileError(f"{data}: {', '.join(wrong)} must hold numbers as in the fit, got text: choose other columns")
    if texts:
        rows = rows.astype(object)
    for i in texts:
        rows[:, i] = as_levels(rows[:, i].tolist(), levels[i])
    return found._replace(values=rows if place is None else insert(rows, place, nan, axis=1))


def _load(path: Path, any_estimator: bool = False) -> Any:
    existing_file(path)
    from rtbm.estimators.density.fitted import FittedDensity
    from rtbm.persistence import load

    model = load(path)
    if not isinstance(model, FittedDensity) and not (any_estimator and hasattr(model, "summary_")):
        raise FileError(
            f"{path}: holds a {type(model).__name__}, and this command needs a fitted RTBMDensity or RTBMDensityCV"
        )
    return model


def _write(output: Path | None, rows: Any, names: list[str] | None, what: str, note: Console = console) -> None:
    """Write rows to the screen, or to a file and say what it holds."""
    from rtbm.output import write_rows

    is_file = output not in (None, STANDARD)
    write_rows(output if is_file else None, rows, names)
    if is_file:
        note.print(f"{what}: {output}")


def _draw(model: Any, rows: Any, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from rtbm.plotting import plot_model

    picture = io.BytesIO()
    plot_model(model, rows).savefig(picture, format=path.suffix[1:].lower(), dpi=130)
    write_whole(path, picture.getvalue())


def _say(kind: str, message: Any) -> None:
    """Print a line on standard error."""
    errors.print(f"{kind}: " + re.sub(rf"\S*{INPUT_FOLDER}\w+/", "", printable(message)))


def main() -> None:
    """Run the command. Errors of the library end it with one line and exit code 1."""
    warnings.showwarning = lambda message, *_: _say(
        "warning", str(message).replace("raise max_iter or tol", "raise --iterations")
    )
    try:
        app()
    except (RTBMError, ValueError, OSError, RuntimeError, MemoryError) as error:
        _say("error", next(iter(str(error).splitlines()), type(error).__name__))
        sys.exit(1)
