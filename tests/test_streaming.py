"""Data larger than memory, several processes, and other joblib backends."""

import os
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rtbm import FileError, InvalidInputError, RTBMDensity, datasets
from rtbm.data_files import FileRows

X = datasets.gamma.sample(2000, seed=0)
GRID = np.linspace(0, 20, 50)[:, None]
WORKER = Path(__file__).with_name("stream_worker.py")


def adam(**options):
    return RTBMDensity(2, **{"solver": "adam", "max_iter": 4, "n_init": 1, "random_state": 0, **options})


def two_processes(*arguments):
    """Run the worker under torchrun, in two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path):
    two_processes(WORKER, "array", "-", tmp_path / "out")
    ours = [np.load(tmp_path / f"out.{rank}.npy") for rank in (0, 1)]
    single = adam(max_iter=30, fallback=None).fit(datasets.gamma.sample(500, seed=0)).score_samples(GRID)
    assert np.array_equal(*ours)
    assert np.allclose(ours[0], single, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_two_processes_share_a_file_and_may_have_loaders_of_different_length(tmp_path):
    pq.write_table(pa.table({"x": X[:, 0]}), tmp_path / "x.parquet", row_group_size=300)
    np.save(tmp_path / "x.npy", X)
    best = RTBMDensity(2, n_init=1, random_state=0).fit(X).score_samples(GRID)
    for kind, source in (("file", "x.parquet"), ("loader", "x.npy"), ("file", "x.npy")):  # the last is a single block
        two_processes(WORKER, kind, tmp_path / source, tmp_path / kind)
        ours = [np.load(tmp_path / f"{kind}.{rank}.npy") for rank in (0, 1)]
        assert np.array_equal(*ours)
        weight = np.exp(best) / np.exp(best).sum()
        assert weight @ np.abs(ours[0] - best) < (0.03 if kind == "file" else 0.2)


@pytest.mark.slow
def test_the_command_runs_under_torchrun(tmp_path):
    np.save(tmp_path / "x.npy", X[:300])
    model = tmp_path / "m.rtbm"
    options = ["--solver", "adam", "--iterations", "3", "--starts", "1", "-q", "-o", model]
    two_processes("-m", "rtbm", "fit", tmp_path / "x.npy", *options)
    assert model.is_file()


@pytest.mark.parametrize("kind", ["npy", "parquet", "loader", "arrays", "weighted"])
def test_streams_end_near_the_fit_of_all_data(tmp_path, kind):
    np.save(tmp_path / "x.npy", X)
    pq.write_table(pa.table({"x": X[:, 0]}), tmp_path / "x.parquet", row_group_size=600)
    source = {
        "npy": FileRows(tmp_path / "x.npy", batch_size=256, block_rows=600),
        "parquet": tmp_path / "x.parquet",
        "loader": torch.utils.data.DataLoader(torch.from_numpy(X), batch_size=250, shuffle=True),
        "arrays": [X[:1000], X[1000:]],
        "weighted": [(X[:500], np.full(500, 2.0)), (X[500:1000], np.full(500, 2.0)), (X[1000:], np.zeros(1000))],
    }[kind]
    torch.manual_seed(0)
    model = adam(batch_size=256).fit_stream(source)
    rows = X[:1000] if kind == "weighted" else X
    best = RTBMDensity(2, n_init=1, random_state=0).fit(rows)
    assert model.set_feature_names(None).score(rows) > best.score(rows) - 5e-3
    assert model.summary_["n_observations"] == 2000
    assert len(model.history_) == 4


def test_a_sample_of_the_stream_is_enough_to_start():
    rows = datasets.gamma.sample(60_000, seed=0)  # three times the sample
    model = adam(max_iter=2).fit_stream([rows[i : i + 2000] for i in range(0, len(rows), 2000)])
    assert model.score(rows) > RTBMDensity(2, n_init=1, random_state=0).fit(rows).score(rows) - 1e-3


def test_streams_with_bounds_names_and_missing_entries(tmp_path):
    rows = datasets.correlated_gaussian.sample(400)
    rows[::7, 0] = np.nan
    pq.write_table(pa.table({"x": rows[:, 0], "y": np.exp(rows[:, 1])}), tmp_path / "x.parquet", row_group_size=100)
    model = adam(bounds=[None, (0, None)], max_iter=2).fit_stream(tmp_path / "x.parquet")
    assert list(model.feature_names_in_) == ["x", "y"]
    assert model.sample(20)[:, 1].min() > 0
    assert adam(max_iter=1).fit_stream(tmp_path / "x.parquet", ["y"]).n_features_in_ == 1


def test_the_same_seed_gives_the_same_stream(tmp_path):
    np.save(tmp_path / "x.npy", X)
    first, second = (adam(max_iter=2, batch_size=128).fit_stream(tmp_path / "x.npy") for _ in range(2))
    assert np.array_equal(first.score_samples(GRID), second.score_samples(GRID))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "batches of shape"),
        ([np.zeros(5)], "batches of shape"),
        ([np.ones((3, 1)), np.ones((3, 2))], "batch must have shape"),
        ([np.full((3, 1), np.inf)], "infinite"),
        ([(np.ones((3, 1)), np.full(3, -1.0))], "negative weights"),
        ([(np.ones((3, 1)), np.full(3, 1e308))], "weights above"),
        ([(np.arange(3.0)[:, None], np.full(3, 1e-300))], "multiply them"),
        ([(np.ones((3, 1)), np.zeros(3))], "positive weight"),
        (iter([np.ones((3, 1))]), "once for each epoch"),
        (5, "once for each epoch"),
    ],
)
def test_wrong_streams_are_explained(source, message):
    with pytest.raises(InvalidInputError, match=message):
        adam().fit_stream(source)


def test_streams_need_a_solver_and_a_file():
    with pytest.raises(InvalidInputError, match="adam"):
        RTBMDensity(solver="cma").fit_stream([X])
    with pytest.raises(FileError, match="no such file"):
        adam().fit_stream("nowhere.npy")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_starts_run_on_a_dask_cluster():
    distributed = pytest.importorskip("distributed")
    alone = RTBMDensity(2, n_init=4, random_state=0).fit(X[:300])
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config("dask"),
    ):
        together = RTBMDensity(2, n_init=4, random_state=0, n_jobs=-1).fit(X[:300])
    assert np.array_equal(alone.score_samples(GRID), together.score_samples(GRID))
