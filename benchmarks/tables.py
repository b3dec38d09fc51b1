"""Densities of the tables on which the candidates of `RTBMDensityCV` were chosen, beside other methods.

    pip install ".[bench]"  # in a checkout
    python benchmarks/tables.py --seeds 5

`python -m experiments realdata` is the same for tables that played no part in that choice.
"""

import argparse

from rich.console import Console
from rich.table import Table

from experiments.experiment import ResultTable
from experiments.runner import run_jobs
from experiments.tables.realdata import COMPARISON, IN_VIEW


def show(table: ResultTable) -> None:
    """Print a table."""
    shown = Table(*table.columns, title=table.title)
    for row in table.rows:
        shown.add_row(*row)
    Console().print(shown)


def main() -> None:
    """Run all splits of all tables in parallel."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=-1)
    options = parser.parse_args()
    comparison = COMPARISON._replace(tables=IN_VIEW)
    jobs = comparison.jobs(options.seeds, False)
    parts = run_jobs([(job, None) for job in jobs], options.jobs)
    results = {job.key: part["result"] for job, part in zip(jobs, parts, strict=True)}
    outcome = comparison.collect(results, options.seeds, False)
    for table in comparison.result_tables(outcome):
        show(table)
    for verdict in comparison.verdicts(outcome):
        print(verdict.text)


if __name__ == "__main__":
    main()
