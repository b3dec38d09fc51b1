"""Fits of files, blocks, several processes and Dask collections: the fit of the same rows in memory."""

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn import config_context

from rtbm import FileError, InvalidInputError, RTBMDensity, RTBMDensityCV, datasets
from rtbm.training.blocks import open_data

X = datasets.gamma.sample(30_000, seed=0)  # more than the rows of a sample
PLANE = datasets.correlated_gaussian.sample(800)
WORKER = Path(__file__).with_name("sources_worker.py")


def density(n_hidden=2, **options):
    return RTBMDensity(n_hidden, **{"n_init": 2, "random_state": 0, **options})


def objective(model):
    return model.history_[-1].objective


@pytest.fixture(scope="module")
def alone():
    """One process, one block."""
    return density().fit([X])


def blocks_of(kind, folder, rows=X):
    third = len(rows) // 3
    if kind == "npy":
        np.save(folder / "x.npy", rows)
        return folder / "x.npy"
    if kind == "parquet":
        columns = {f"x{i}": column for i, column in enumerate(rows.T)}
        table = pa.table({**columns, "name": ["a"] * len(rows)})
        pq.write_table(table, folder / "x.parquet", row_group_size=len(rows) // 4)
        return str(folder / "x.parquet")
    if kind == "loader":
        return torch.utils.data.DataLoader(torch.from_numpy(rows), batch_size=512)
    if kind == "frames":
        return [pd.DataFrame(rows[:3]), pd.DataFrame(rows[3:])]
    if kind == "dask":
        return pytest.importorskip("dask.array").from_array(rows, chunks=(third, rows.shape[1]))
    return [rows[:1], rows[1:1], rows[1:third], (rows[third:], np.ones(len(rows) - third))]


@pytest.mark.parametrize("kind", ["npy", "parquet", "loader", "frames", "dask", "blocks"])
def test_the_way_in_which_rows_come_has_no_influence(alone, tmp_path, kind):
    model = density().fit(blocks_of(kind, tmp_path))
    assert abs(objective(model) - objective(alone)) < 1e-9
    assert model.summary_["n_observations"] == 30_000
    assert model.converged_


def test_blocks_give_the_fit_of_the_array(alone):
    whole = density().fit(X)
    assert np.allclose(whole.score_samples(X), alone.score_samples(X), rtol=0, atol=1e-8)
    assert abs(alone.summary_["log_likelihood"] - alone.score(X)) < 1e-7


def test_blocks_are_read_anew_where_memory_is_short(alone):
    with config_context(working_memory=0):
        model = density().fit([X[:9_000], X[9_000:]])
    assert objective(model) == pytest.approx(objective(alone), abs=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"n_components": 2},
        {"solver": "em"},
        {"bounds": [None, (0, None)]},
    ],
)
@pytest.mark.parametrize("n_rows", [800, 24_000])
def test_gaps_weights_and_bounds_in_blocks(options, n_rows):
    rows = datasets.correlated_gaussian.sample(n_rows)
    rows[:, 1] = np.exp(rows[:, 1])
    rows[::7, 0] = np.nan
    rows[5] = np.nan
    weights = np.random.default_rng(0).integers(0, 3, len(rows)).astype(float)
    options = {"fallback": None, "n_hidden": 1, **options}
    whole = density(**options).fit(rows, sample_weight=weights)
    parts = density(**options).fit([(rows[:300], weights[:300]), (rows[300:], weights[300:])])
    assert np.allclose(parts.score_samples(rows), whole.score_samples(rows), rtol=0, atol=1e-8)
    kept = weights[~np.isnan(rows).all(axis=1)].sum()
    assert parts.summary_["n_observations"] == kept
    filled = ~np.isnan(rows).all(axis=1)
    mean = weights[filled] @ parts.score_samples(rows[filled]) / kept
    assert parts.summary_["log_likelihood"] == pytest.approx(mean, abs=1e-6)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("kind", ["npy", "parquet", "loader", "frames", "dask", "blocks"])
def test_few_rows_in_blocks_have_the_fit_of_the_array(tmp_path, kind):
    rows = datasets.correlated_mixture.sample(232, seed=1)
    options = {"n_components": 2, "fallback": None, "n_init": 4}
    whole = density(**options).fit(rows).score_samples(rows)
    parts = density(**options).fit(blocks_of(kind, tmp_path, rows)).score_samples(rows)
    assert np.allclose(parts, whole, rtol=0, atol=1e-8)


class Changing(list):
    """Blocks that hold an infinite number once the passes over all data have begun."""

    n_passes = 0

    def __iter__(self):
        self.n_passes += 1
        return iter([*super().__iter__(), np.full((1, 1), np.inf)] if self.n_passes > 4 else super().__iter__())


def test_data_that_change_between_passes_are_no_failed_step():
    with config_context(working_memory=0), pytest.raises(OSError, match=r"cannot be read again.*infinite"):
        density().fit(Changing([X]))


def test_a_gaussian_stays_a_gaussian():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (30_000, 1))
    model = density().fit([rows])
    assert model.is_gaussian_
    assert float(model.distribution_.mean) == pytest.approx(rows.mean(), abs=1e-6)
    assert float(model.distribution_.variance) == pytest.approx(rows.var(), rel=1e-6)


def test_large_memory_maps_are_read_in_blocks(tmp_path, alone):
    np.save(tmp_path / "x.npy", X)
    with config_context(working_memory=0):
        model = density().fit(np.load(tmp_path / "x.npy", mmap_mode="r"), sample_weight=np.ones(len(X)))
    assert objective(model) == pytest.approx(objective(alone), abs=1e-9)


def test_single_precision_files(tmp_path):
    np.save(tmp_path / "x.npy", X.astype(np.float32))
    model = density().fit(tmp_path / "x.npy")
    assert objective(model) == pytest.approx(objective(density().fit([X.astype(np.float32)])), abs=1e-9)


@pytest.mark.filterwarnings("ignore:the solver")
@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float64, (4_000_000, 2))  # 61 MiB
    for begin in range(0, len(rows), 500_000):
        rows[begin : begin + 500_000] = datasets.correlated_gaussian.sample(500_000, seed=begin)
    model = density(max_iter=3, fallback=None)
    model.fit(rows[:30_000])  # compiles
    tracemalloc.start()
    with config_context(working_memory=0):
        model.fit(tmp_path / "x.npy")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 2**20


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ([X], {"validation_fraction": 0.1}, "validation_fraction=0.1"),
        ([X], {"drop_constant": True}, "drop_constant=True"),
        ([X], {"solver": "cma"}, "got 'cma'"),
        (iter([X]), {}, "once for each pass"),
        ([np.empty((3, 0))], {}, "0 columns"),
        ([(X, np.full(len(X), 1e308))], {}, "weights above"),
        ([(np.arange(3.0)[:, None], np.full(3, 1e-300))], {}, "multiply them"),
        ([(X, np.zeros(len(X)))], {}, "positive weight"),
        ([X, PLANE], {}, r"shape \(rows, 1\)"),
        ([X, np.full((1, 1), np.inf)], {}, "infinite"),
        ([(X, -np.ones(len(X)))], {}, "negative"),
        ([(X, np.ones(3))], {}, "weights"),
        ([X[:0], X[:1]], {}, "at least 2"),
        ([np.ones((50, 1))], {}, "only one value"),
    ],
)
def test_wrong_sources_are_explained(source, options, message):
    with pytest.raises(InvalidInputError, match=message):
        density(**options).fit(source)


def test_weights_belong_to_blocks_and_committees_to_memory(tmp_path):
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(InvalidInputError, match="pairs"):
        density().fit(tmp_path / "x.npy", sample_weight=np.ones(len(X)))
    with pytest.raises(InvalidInputError, match="in memory"):
        RTBMDensityCV().fit(tmp_path / "x.npy")


def test_columns_of_a_file_can_be_chosen(tmp_path):
    table = pa.table({"x": PLANE[:, 0], "y": np.exp(PLANE[:, 1])})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=100)
    model = density(1, bounds={"y": (0, None)}).fit(tmp_path / "x.parquet")
    assert list(model.feature_names_in_) == ["x", "y"]
    assert model.sample(20)[:, 1].min() > 0
    assert density(1).fit(tmp_path / "x.parquet", columns=["y"]).n_features_in_ == 1
    with pytest.raises(InvalidInputError, match="columns is for files"):
        density(1).fit(PLANE, columns=["y"])
    with pytest.raises(InvalidInputError, match="columns is for files"):
        density(1).fit([PLANE], columns=["y"])
    with pytest.raises(FileError, match="no such file"):
        density(1).fit("nowhere.npy")


def test_files_that_end_too_early(tmp_path):
    np.save(tmp_path / "x.npy", X)
    pq.write_table(pa.table({"x": X[:, 0]}), tmp_path / "x.parquet")
    for name, message in (("x.npy", "ends before its last row"), ("x.parquet", "not a Parquet file")):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2 + 3])
        with pytest.raises(FileError, match=message):
            density().fit(tmp_path / name)


def two_processes(*arguments, fails=False):
    """Run a program under torchrun, in two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert (result.returncode != 0) == fails, result.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "blocks", "one"])
def test_two_processes_find_what_one_finds(alone, tmp_path, kind):
    np.save(tmp_path / "x.npy", X)
    two_processes(WORKER, kind, tmp_path / "x.npy", tmp_path / "out")
    first, second = (np.load(tmp_path / f"out.{rank}.npy") for rank in (0, 1))
    assert np.array_equal(first, second)
    assert abs(first[0] - objective(alone)) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("columns", "process 0 has x, and process 1 has y"),
        ("fail", "the disk is on fire"),
        ("infinite", "infinite"),
        ("die", "another process"),
    ],
)
def test_an_error_in_one_process_is_an_error_in_both(tmp_path, kind, message):
    np.save(tmp_path / "x.npy", X)
    begin = time.monotonic()
    two_processes(WORKER, kind, tmp_path / "x.npy", tmp_path / "out", fails=True)
    assert time.monotonic() - begin < 60
    ranks = (0,) if kind == "die" else (0, 1)
    for rank in ranks:
        assert message in (tmp_path / f"out.{rank}.txt").read_text()


@pytest.mark.slow
def test_the_command_runs_under_torchrun(tmp_path):
    np.save(tmp_path / "x.npy", X[:300])
    model = tmp_path / "m.rtbm"
    two_processes("-m", "rtbm", "fit", tmp_path / "x.npy", "--stream", "--starts", "1", "-q", "-o", model)
    assert model.is_file()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_starts_run_on_a_dask_cluster():
    distributed = pytest.importorskip("distributed")
    grid = np.linspace(0, 20, 50)[:, None]
    here = density(n_init=4).fit(X[:300])
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config("dask"),
    ):
        there = density(n_init=4, n_jobs=-1).fit(X[:300])
    assert np.array_equal(here.score_samples(grid), there.score_samples(grid))


@pytest.fixture
def cluster():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "processes": False}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_two_dask_workers_find_what_one_process_finds(alone, cluster):
    dask_array = pytest.importorskip("dask.array")
    frames = pytest.importorskip("dask.dataframe")
    model = density().fit(dask_array.from_array(X, chunks=(4_000, 1)))
    assert abs(objective(model) - objective(alone)) < 1e-9
    table = frames.from_pandas(pd.DataFrame({"x": X[:, 0], "name": "a"}), npartitions=3)
    parts = [table.partitions[0], table.partitions[1][table.partitions[1].x < -1], *table.partitions[1:].partitions]
    model = density().fit(frames.concat(parts))  # the second partition is empty
    assert abs(objective(model) - objective(alone)) < 1e-9
    assert list(model.feature_names_in_) == ["x"]
    assert "name" in model.summary_["left_out"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_wrong_partitions_are_explained(cluster):
    dask = pytest.importorskip("dask")
    frames = pytest.importorskip("dask.dataframe")
    good = pd.DataFrame({"x": X[:100, 0], "y": 1.0})
    parts = [dask.delayed(good), dask.delayed(good.rename(columns={"y": "z"}))]
    table = frames.from_delayed(parts, meta=good, verify_meta=False)
    with pytest.raises(InvalidInputError, match="expected x, y, got x, z"):
        density().fit(table)
    array = pytest.importorskip("dask.array").from_array(np.where(X > 10, np.inf, X), chunks=(5_000, 1))
    with pytest.raises(InvalidInputError, match="infinite"):
        density().fit(array)
    with pytest.raises(InvalidInputError, match="got 'cma'"):
        density(solver="cma").fit(array)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_a_fit_goes_on_without_a_dask_worker_that_dies_and_ends_without_any():
    distributed = pytest.importorskip("distributed")
    dask_array = pytest.importorskip("dask.array")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "processes": True}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        data = open_data(dask_array.from_array(X, chunks=(5_000, 1)))
        assert data.add(_sum_rows) == pytest.approx(X.sum())
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        assert data.add(_sum_rows) == pytest.approx(X.sum())
        cluster.scale(0)
        with pytest.raises(ConnectionError, match="died"):
            data.add(_sum_rows)


def _sum_rows(part):
    return sum(rows.sum() for _, rows, _ in part)
