"""The results of the experiments beside those of the paper: one HTML page, and parts of the documents."""

import base64
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from experiments import load_experiments
from experiments.experiment import Experiment, Picture, ResultTable
from experiments.runner import fingerprint
from experiments.verdicts import Status

PAGE = "report.html"
"""File name of the report."""

PAGE_STYLE = """
:root { --ink: #1c2730; --soft: #5b6b77; --line: #d9e0e5; --deep: #1b4965; --pale: #f4f7f9; }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: #fff; }
main { max-width: 1180px; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0.5rem 0; color: var(--deep); }
h2 { font-size: 1.4rem; margin: 3rem 0 0.5rem; padding-top: 1rem; border-top: 2px solid; color: var(--deep); }
h3 { font-size: 1rem; margin: 1.5rem 0 0.4rem; }
p { max-width: 75ch; margin: 0.5rem 0; }
a { color: var(--deep); }
.soft, figcaption, .paper { color: var(--soft); font-size: 0.92rem; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { background: var(--pale); vertical-align: bottom; }
tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--pale); }
td.best { font-weight: 700; color: var(--deep); }
.pair { display: grid; grid-template-columns: 1fr 3fr; gap: 1.2rem; margin: 1.2rem 0; align-items: start; }
.pair .paper { background: var(--pale); border-radius: 6px; padding: 0.8rem 1rem; }
figure { margin: 0; }
img { max-width: 100%; height: auto; display: block; }
ul.verdicts { list-style: none; padding: 0; margin: 0.5rem 0; }
ul.verdicts li { padding: 0.35rem 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
.badge { display: inline-block; min-width: 8.6em; text-align: center; border-radius: 4px; padding: 0 0.5em;
  font-size: 0.8rem; font-weight: 600; margin-right: 0.6em; color: #fff; background: #7b8a95; }
.badge.beaten { background: #1f7a4d; }
.badge.reproduced { background: #2f6f9f; }
.badge.not-reached { background: #b4472e; }
code { background: var(--pale); padding: 0.1em 0.35em; border-radius: 4px; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.1rem 1rem; font-size: 0.9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 700px) {
  .pair { grid-template-columns: 1fr; }
  h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; }
  table { font-size: 0.78rem; }
  dl { grid-template-columns: 1fr; } dd { margin-bottom: 0.4rem; }
}
"""


class Section(NamedTuple):
    """The stored results of an experiment."""

    name: str
    experiment: Experiment
    record: dict[str, Any]
    """The contents of NAME.json."""
    pictures: list[bytes]
    """The contents of the PNG files, one for each picture of the experiment."""


def picture_path(folder: Path, name: str, picture: Picture) -> Path:
    """The file of a picture."""
    return folder / ("-".join([name, picture.name] if picture.name else [name]) + ".png")


def read_sections(folder: Path) -> tuple[list[Section], list[str]]:
    """The experiments with results in a folder, and the names of those whose results are damaged or of other code."""
    sections, stale = [], []
    for name, experiment in load_experiments().items():
        paths = [picture_path(folder, name, picture) for picture in experiment.pictures]
        try:
            record = json.loads((folder / f"{name}.json").read_text())
            pictures = [path.read_bytes() for path in paths]
        except (OSError, ValueError):
            stale += [name] if (folder / f"{name}.json").exists() else []
            continue
        if isinstance(record, dict) and record.get("fingerprint") == fingerprint():
            sections.append(Section(name, experiment, record, pictures))
        else:
            stale.append(name)
    return sections, stale


def render(sections: Sequence[Section]) -> str:
    """The page as HTML."""
    body = "".join([_summary(sections), *(_section(section) for section in sections)])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>Riemann-Theta Boltzmann Machines: the paper, reproduced</title><style>{PAGE_STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _summary(sections: Sequence[Section]) -> str:
    """The title, and the number of verdicts of each status in each section."""
    rows = []
    for section in sections:
        outcome = section.record["outcome"]
        counts = Counter(verdict.status for verdict in section.experiment.judge(outcome))
        link = f'<td><a href="#{section.name}">{escape(section.experiment.title)}</a></td>'
        kind = "quick" if outcome["quick"] else "full"
        cells = [*(str(counts[status] or "") for status in Status), kind, duration(section.record["seconds"])]
        rows.append(link + "".join(f"<td>{cell}</td>" for cell in cells))
    return (
        "<header><p class='soft'>rtbm</p><h1>Riemann-Theta Boltzmann Machines: the paper, reproduced</h1>"
        "<p>The experiments of Krefl, Carrazza, Haghighat and Kahlen, <a href='https://arxiv.org/abs/1712.07581'>"
        "arXiv:1712.07581</a>, run anew. What the paper shows stands beside what this library finds. “Reproduced”, "
        "“beaten” and “not reached” are about claims and numbers of the paper; “too few seeds” is for claims that a "
        "short run does not reach. Results that the paper does not report "
        f"are “beyond the paper”.</p></header>{_html_table(['section', *Status, 'run', 'computing time'], rows)}"
    )


def _html_table(columns: Sequence[str], rows: Sequence[str]) -> str:
    """A table that scrolls sideways if it is too wide; each row is a string of cells."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<div class='wide' tabindex='0'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _section(section: Section) -> str:
    outcome, experiment = section.record["outcome"], section.experiment
    parts = [f'<section id="{section.name}"><h2>{escape(experiment.title)}</h2><p>{_text(experiment.about)}</p>']
    parts.append("<h3>Verdicts</h3><ul class='verdicts'>")
    for status, text in experiment.judge(outcome):
        parts.append(f'<li><span class="badge {status.replace(" ", "-")}">{escape(status)}</span>{escape(text)}</li>')
    parts.append("</ul>")
    parts += [_table(table) for table in experiment.tables(outcome)]
    parts += [_pair(picture, png) for picture, png in zip(experiment.pictures, section.pictures, strict=True)]
    return "".join([*parts, _how(section), "</section>"])


def _table(table: ResultTable) -> str:
    rows = []
    for row, best in zip(table.rows, table.best or itertools.repeat(-1), strict=False):
        classes = (' class="best"' if i == best else "" for i in range(len(row)))
        rows.append("".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(classes, row, strict=True)))
    return f"<h3>{escape(table.title)}</h3>{_html_table(table.columns, rows)}"


def _pair(picture: Picture, png: bytes) -> str:
    """A description of the paper's figure, and our figure beside it."""
    paper = _text(picture.paper) if picture.paper else "Nothing of the kind."
    source = base64.b64encode(png).decode()
    return (
        f"<div class='pair'><div class='paper'><strong>In the paper</strong><br>{paper}</div>"
        f'<figure><img alt="{escape(picture.ours, quote=True)}" src="data:image/png;base64,{source}">'
        f"<figcaption><strong>Here</strong> {_text(picture.ours)}</figcaption></figure></div>"
    )


def _how(section: Section) -> str:
    """The command, seeds, time and versions behind the numbers."""
    record = section.record
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    items = {
        "command": f"<code>{escape(record['command'])}</code>",
        "seeds": escape(record["seeds"]),
        "computing time": f"{duration(record['seconds'])}, summed over processes",
        "versions": escape(versions),
        "finished": escape(record["finished"]),
    }
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in items.items()) + "</dl>"


def to_markdown(experiment: Experiment, record: dict[str, Any]) -> str:
    """The verdicts and tables of an experiment, and how they came about, as a part of the documents."""
    outcome = record["outcome"]
    lines = [f"% Written by `{record['command']} --publish`.", ""]
    lines += [f"- **{status}**: {text}" for status, text in experiment.judge(outcome)]
    for table in experiment.tables(outcome):
        lines += ["", f"**{table.title}**", "", _markdown_row(table.columns), "|---" * len(table.columns) + "|"]
        for row, best in zip(table.rows, table.best or itertools.repeat(-1), strict=False):
            lines.append(_markdown_row([f"**{cell}**" if i == best else cell for i, cell in enumerate(row)]))
    versions = ", ".join(f"{package} {version}" for package, version in record["versions"].items())
    how = f"`{record['command']}`, seeds {record['seeds']}, {duration(record['seconds'])} of computing"
    return "\n".join([*lines, "", f"{how}, {record['finished']}; {versions}.", ""])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _text(text: str) -> str:
    """Escaped text, with `code` between backticks."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if i % 2 else piece for i, piece in enumerate(pieces))


def duration(seconds: float) -> str:
    """A time in seconds, or in minutes from 100 seconds on."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
