"""Tables in files: what is read, and what is said about what cannot be."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rtbm import FileError
from rtbm.files import FileRows, column_names, read_table
from rtbm.paths import write_whole


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "names", "values"),
    [
        ("a,b\n1,2\n3,4\n", ["a", "b"], [[1, 2], [3, 4]]),
        ("1,2\n3,4\n", None, [[1, 2], [3, 4]]),
        ("a;b\n1;2\n", ["a", "b"], [[1, 2]]),
        ("a\tb\n1e3\t-2.5\n", ["a", "b"], [[1000, -2.5]]),
        ("\ufeffa\n1\n\n2\n", ["a"], [[1], [2]]),
        ("a,b\n1,\nNA,4\nnan,null\n", ["a", "b"], [[1, np.nan], [np.nan, 4], [np.nan, np.nan]]),
        ('"x, in m", y\n 1, 2\n', ["x, in m", "y"], [[1, 2]]),
        ("7\r\n8\r\n", None, [[7], [8]]),
        ("# made by hand\n\nx;y\n1;2\n   \n3;4\n", ["x", "y"], [[1, 2], [3, 4]]),
        ('"a; b",y\n1,2\n', ["a; b", "y"], [[1, 2]]),
        ("1.5,NA\n2,3\n", None, [[1.5, np.nan], [2, 3]]),
    ],
)
def test_csv(tmp_path, text, names, values):
    path = write(tmp_path / "data.csv", text)
    table = read_table(path)
    assert table.names == names == column_names(path)
    assert np.array_equal(table.values, np.array(values, dtype=float), equal_nan=True)


def test_header_can_be_told(tmp_path):
    path = write(tmp_path / "data.csv", "1,2\n3,4\n")
    assert read_table(path, header=True).names == ["1", "2"]
    assert len(read_table(path, header=True).values) == 1
    named = write(tmp_path / "named.csv", "a,b\n3,4\n")
    with pytest.raises(FileError, match=r"line 1, column 1: 'a' is not a finite number"):
        read_table(named, header=False)


def test_columns_are_chosen_by_name_and_the_others_need_not_be_numbers(tmp_path):
    path = write(tmp_path / "data.csv", "name,x,y\nann,1,2\nbob,3,4\n")
    assert read_table(path, ["y", "x"]).values.tolist() == [[2, 1], [4, 3]]
    with pytest.raises(FileError, match=r"line 2, column 'name' \(1\): 'ann'"):
        read_table(path)
    with pytest.raises(FileError, match=r"no column 'z'; there are name, x, y"):
        read_table(path, ["z"])
    assert read_table(write(tmp_path / "bare.csv", "1,2\n3,4\n"), ["1"]).values.tolist() == [[2], [4]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,x\n", r"line 3, column 'b' \(2\): 'x'"),
        ("a,b\n1,inf\n", r"line 2, column 'b' \(2\): 'inf'"),
        ("a,b\n1,2\n3\n", "line 3 has 1 cells"),
        ("# c\n\na,b\n1,2\n3,x\n", r"line 5, column 'b' \(2\): 'x'"),
        ("1.5,oops\n1,2\n", "first row mixes numbers and text such as 'oops'.*--no-header"),
        ("inf,1\n1,2\n", r"line 1, column 1: 'inf'"),
        ("x,x\n1,2\n", "different names, got 'x'"),
        ("a;b\n1,5;2\n", "write decimal points"),
        ("a\n1_0\n", "'1_0' is not a finite number"),
        ("a,b\n", "no rows"),
        ("", "empty"),
    ],
)
def test_bad_cells_are_named_by_row_and_column(tmp_path, text, message):
    with pytest.raises(FileError, match=message):
        read_table(write(tmp_path / "data.csv", text))


def test_npy(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.int32).reshape(3, 2))
    assert read_table(tmp_path / "a.npy").values.dtype == np.float64
    assert read_table(tmp_path / "a.npy", ["1"]).values.tolist() == [[1], [3], [5]]
    np.save(tmp_path / "b.npy", np.arange(3.0))
    assert read_table(tmp_path / "b.npy").values.shape == (3, 1)
    np.save(tmp_path / "c.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(FileError, match=r"not a \.npy file of numbers"):
        read_table(tmp_path / "c.npy")
    np.save(tmp_path / "d.npy", np.array(["x"]))
    with pytest.raises(FileError, match="must hold numbers"):
        read_table(tmp_path / "d.npy")
    np.save(tmp_path / "e.npy", np.array([[0.0, np.inf]]))
    with pytest.raises(FileError, match="row 0, column 1"):
        read_table(tmp_path / "e.npy")


def test_parquet(tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": [1, 2, None], "y": [0.5, 1.5, 2.5], "label": ["a", "b", "c"]}), path)
    table = read_table(path, ["y", "x"])
    assert table.names == ["y", "x"]
    assert np.array_equal(table.values, [[0.5, 1], [1.5, 2], [2.5, np.nan]], equal_nan=True)
    with pytest.raises(FileError, match="row 0, column 'label'"):
        read_table(path)
    with pytest.raises(FileError, match="not a Parquet file"):
        read_table(write(tmp_path / "fake.parquet", "hello"))


def test_names_of_files_and_columns(tmp_path):
    assert read_table(write(tmp_path / "UP.CSV", "1,2\n")).values.tolist() == [[1, 2]]
    assert read_table(write(tmp_path / "a.txt", "1 2\n3 4\n")).values.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(FileError, match="more than once"):
        read_table(write(tmp_path / "a.csv", "x,y\n1,2\n"), ["x", "x"])
    (tmp_path / "latin.csv").write_bytes("größe\n1\n".encode("latin-1"))
    for function in (read_table, column_names):
        with pytest.raises(FileError, match="UTF-8"):
            function(tmp_path / "latin.csv")


def test_files_are_written_whole_through_links_and_with_their_mode(tmp_path):
    target, link = tmp_path / "real", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileError, match="cannot be written"):
        write_whole(tmp_path, b"new")


SAVE = """
import os, sys
from rtbm.paths import write_whole
def pause(handle):
    print("writing", flush=True)
    sys.stdin.readline()
os.fsync = pause
write_whole(sys.argv[1], b"theirs")
"""


def saving(path):
    """A process in the middle of a save; a line on its standard input lets it go on."""
    process = subprocess.Popen(
        [sys.executable, "-c", SAVE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "writing\n"
    return process


@pytest.mark.skipif(os.name == "nt", reason="no locks that end with their process")
def test_a_save_removes_what_killed_saves_have_left_and_nothing_else(tmp_path):
    path = tmp_path / "model.rtbm"
    similar = [tmp_path / name for name in (".model.rtbm.backup01", ".model.rtbm.backup01.tmp", "model.rtbm.old")]
    for other in similar:
        other.write_bytes(b"mine")
    with saving(path) as killed, saving(tmp_path / "model") as elsewhere, saving(path) as alive:
        killed.kill()
        killed.wait()
        elsewhere.kill()
        elsewhere.wait()
        assert len(list(tmp_path.iterdir())) == len(similar) + 3
        write_whole(path, b"ours")
        assert path.read_bytes() == b"ours"
        assert (
            len(list(tmp_path.iterdir())) == len(similar) + 3
        )  # the files of the killed save elsewhere and of the living
        alive.communicate("\n")
        assert alive.returncode == 0
    assert path.read_bytes() == b"theirs"
    write_whole(tmp_path / "model", b"ours")
    assert set(tmp_path.iterdir()) == {path, tmp_path / "model", *similar}


def test_other_files(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(FileError, match="must end in"):
        read_table(write(tmp_path / "data.xlsx", ""))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(FileError):
        read_table(tmp_path / "binary.csv")


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_streams_give_every_row_once_in_each_epoch(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("rtbm.files.BLOCK_ROWS", 7)
    values = np.arange(50.0)
    path = tmp_path / f"data.{kind}"
    if kind == "npy":
        np.save(path, np.column_stack([values, -values]))
    else:
        pq.write_table(pa.table({"x": values, "y": -values}), path, row_group_size=7)
    for number in (0, 1):
        shares = [list(FileRows(path, None, 4, 0, rank, 2).epoch(number)) for rank in (0, 1)]
        rows = np.concatenate([batch for share in shares for batch, _ in share])
        assert sorted(rows[:, 0]) == values.tolist()
        assert np.array_equal(rows[:, 1], -rows[:, 0])
        assert max(len(batch) for share in shares for batch, _ in share) == 4
    orders = [np.concatenate([b for b, _ in FileRows(path, None, 4, seed).epoch(0)])[:, 0] for seed in (0, 0, 1)]
    assert np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])
    chosen = FileRows(path, ["1" if kind == "npy" else "y"], 50)
    assert next(chosen.epoch(0))[0].shape[1] == 1
    with pytest.raises(FileError, match="can be streamed"):
        FileRows(write(tmp_path / "data.csv", "1\n"))
