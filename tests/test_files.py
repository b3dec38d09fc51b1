"""Tables in files: what is read, and what is said about what cannot be."""

import datetime
import gzip
import io
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rtbm import FileError, InvalidInputError, RTBMDensity
from rtbm.data_files import FileRows, column_names, read_table
from rtbm.paths import write_whole

FRAME = pd.DataFrame({"x": [1.0, 2.0], "y": [3.0, 4.0]})
INDEX = "index of a data frame"


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
        ("a,b\n+1.5,-.5\n 7. , 007\n", ["a", "b"], [[1.5, -0.5], [7, 7]]),
        ('a, b\n"1", "2"\n', ["a", "b"], [[1, 2]]),
        ("a,b\n NA ,1\n2, \n", ["a", "b"], [[np.nan, 1], [2, np.nan]]),
        ("a,b\nTrue,1\nfalse,0\n", ["a", "b"], [[1, 1], [0, 0]]),
        ('"two, words",b\r\n1,2\r\n\r\n3,4', ["two, words", "b"], [[1, 2], [3, 4]]),
        ("id\n123456789012345678\n1\n", ["id"], [[123456789012345678], [1]]),
        ('a\n""\n1\n', ["a"], [[np.nan], [1]]),
    ],
)
def test_csv(tmp_path, text, names, values):
    path = write(tmp_path / "data.csv", text)
    table = read_table(path)
    assert table.names == names == column_names(path)
    assert np.array_equal(table.values, np.array(values, dtype=float), equal_nan=True)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_blanks_replace_control_characters_in_names(tmp_path, kind):
    frame, path = FRAME.set_axis(["a\nb", "\x1b[31mc"], axis=1), tmp_path / f"x.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    for columns, expected in ((None, ["a b", "[31mc"]), (["\x1b[31mc"], ["[31mc"])):
        with pytest.warns(UserWarning, match="blanks replace control characters in names of columns: 'a b'"):
            found = read_table(path, columns)
        assert [name.strip() for name in found.names] == expected
    write(tmp_path / "twice.csv", '"a\x1b",a\x07\n1,2\n')
    with pytest.warns(UserWarning, match="'a '"), pytest.raises(FileError, match="different names"):
        read_table(tmp_path / "twice.csv")


def test_header_can_be_told(tmp_path):
    path = write(tmp_path / "data.csv", "1,2\n3,4\n")
    assert read_table(path, header=True).names == ["1", "2"]
    assert len(read_table(path, header=True).values) == 1
    named = write(tmp_path / "named.csv", "a,b\n3,4\n")
    with pytest.raises(FileError, match=r"line 1, column 1: 'a' is not a finite number"):
        read_table(named, header=False)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("0,1,2\n0.5,1.5,2\n", ["0", "1", "2"]),
        ("0,1\n3,4\n5,6\n", ["0", "1"]),
        ("0;1\n1,5;2\n", ["0", "1"]),
        ("2019,2020\n1.0,2\n3,4\n", ["2019", "2020"]),
        ("-1,7\n1e3,NA\n", ["-1", "7"]),
        ("0\n0.5\n1.5\n", ["0"]),
        ("0\n1\n0\n", None),
        ("0\n0.5\n1\n", None),
        ("5\n0.5\n1.5\n", None),
        ("1,2\n3,4\n", None),
        ("1,2\n3,NA\n", None),
        ("1,1\n1.5,2.5\n", None),
        ("1.0,2\n3.5,4\n", None),
    ],
)
def test_integers_in_the_first_row_may_be_names(tmp_path, text, names):
    path = write(tmp_path / "data.csv", text)
    options = {"decimal": ","} if ";" in text else {}
    if names is None:
        assert read_table(path).names is None
        return
    with pytest.warns(UserWarning, match=f"first row, {', '.join(names)}, is taken for names.*--no-header"):
        table = read_table(path, **options)
    assert table.names == names
    assert len(table.values) == text.count("\n") - 1
    assert read_table(path, header=True, **options).names == names
    assert read_table(path, header=False, **options).names is None


@pytest.mark.parametrize("names", [range(3), [2019, 2020, 2021]])
@pytest.mark.parametrize("index", [False, True])
@pytest.mark.filterwarnings("ignore:.*is taken for names:UserWarning")
def test_data_frames_with_numbers_for_names(tmp_path, names, index):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(4, 3)), columns=names)
    frame.to_csv(tmp_path / "data.csv", index=index)
    table = read_table(tmp_path / "data.csv")
    assert table.names == [str(name) for name in names]
    assert np.array_equal(table.values, frame)


def test_columns_are_chosen_by_name_and_the_others_need_not_be_numbers(tmp_path):
    path = write(tmp_path / "data.csv", "name,x,y\nann,1,2\nbob,3,4\n")
    assert read_table(path, ["y", "x"]).values.tolist() == [[2, 1], [4, 3]]
    with pytest.raises(FileError, match=r"line 2, column 'name' \(1\): 'ann'"):
        read_table(path, ["name", "x"])
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
        ("a;b\n1,5;2\n", r"line 2, column 'a' \(1\): '1,5'.*--decimal ,"),
        ('a,b\n"1,234.5",2\n', r"line 2, column 'a' \(1\): '1,234.5'"),
        ("a,b\n0x1F,2\n1,2\n", "line 2, column 'a' .*'0x1F'"),
        ("a\n1\n2\n1e999\n", "line 4, column 'a' .*'1e999'"),
        ("a,b\n1,2\nx,3\n4,y\n", "line 3, column 'a' .*'x'"),
        ('a,b\n"x\ny",1\nz,oops\n', "line 4, column 'b' .*'oops'"),
        ("a,b\nann,2024-01-01\nbob,2024-01-02\n", r"no column holds numbers; left out: a \(text\), b \(dates\)"),
        ("a b\n1 2\n", r"no column holds numbers; .*say what separates cells if it is not ',' \(--separator"),
        (",\n1,2\n", "first row has only empty cells.*--no-header"),
        ("a\n1_0\n", "'1_0' is not a finite number"),
        ("a,b\n", "no rows"),
        ("", "empty"),
    ],
)
def test_bad_cells_are_named_by_row_and_column(tmp_path, text, message):
    with pytest.raises(FileError, match=message):
        read_table(write(tmp_path / "data.csv", text))


@pytest.mark.parametrize("kind", ["large_string", "string_view"])
def test_all_kinds_of_arrow_strings(tmp_path, kind):
    text = getattr(pa, kind)()
    pq.write_table(pa.table({"x": pa.array(["1", "2"], text), "y": pa.array(["a", "b"], text)}), tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet").left_out == {"y": "text"}
    assert read_table(tmp_path / "a.parquet").values.tolist() == [[1], [2]]


@pytest.mark.parametrize("cells", ["1,2", "x,2"])
def test_one_bad_cell_far_down_is_an_error(tmp_path, cells):
    rows = ["1,2", *["3.5,4"] * 5000]
    rows[4000] = cells
    path = write(tmp_path / "data.csv", "\n".join(["a,b", *rows]))
    if cells == "1,2":
        assert read_table(path).values.shape == (5001, 2)
    else:
        with pytest.raises(FileError, match=r"line 4002, column 'a' \(1\): 'x'"):
            read_table(path)


def test_text_and_dates_are_left_out_unless_asked_for(tmp_path):
    path = write(tmp_path / "data.csv", "id,x,day,y,empty\nann,1,2024-01-01,2,\n,3,2024-01-02,4,\n")
    table = read_table(path)
    assert (table.names, dict(table.left_out)) == (["x", "y", "empty"], {"id": "text", "day": "dates"})
    assert np.array_equal(table.values, [[1, 2, np.nan], [3, 4, np.nan]], equal_nan=True)
    assert column_names(path) == ["id", "x", "day", "y", "empty"]
    with pytest.raises(FileError, match=r"line 2, column 'day' .*'2024-01-01'"):
        read_table(path, ["x", "day"])
    days = [datetime.date(2024, 1, 1)] * 3
    columns = {"id": ["ann", None, "bob"], "x": ["1", "2.5", None], "day": days, "flag": [True, False, None]}
    pq.write_table(pa.table({**columns, "list": [[1], [2], [3]], "n": [2**60, 1, 2]}), tmp_path / "data.parquet")
    table = read_table(tmp_path / "data.parquet")
    assert table.names == ["x", "flag", "n"]
    assert {name: why[:4] for name, why in table.left_out.items()} == {"id": "text", "day": "date", "list": "list"}
    rows = read_table(tmp_path / "data.parquet").values
    assert np.array_equal(rows, [[1, 1, 2**60], [2.5, 0, 1], [np.nan, np.nan, 2]], equal_nan=True)
    file = FileRows(tmp_path / "data.parquet", takes_text=False)
    assert (file.names, file.kinds, file.levels) == (["x", "day", "flag", "n"], {1: "dates"}, {})
    assert {name: why[:4] for name, why in file.left_out.items()} == {"id": "text", "list": "list"}
    assert next(file.blocks(10)).tolist()[0] == [1, 19723, 1, 2**60]
    pq.write_table(
        pa.table({"x": ["1", "2", "oops"], "c": pa.array(["a"] * 3).dictionary_encode()}),
        path := tmp_path / "b.parquet",
    )
    with pytest.raises(FileError, match="row 2, column 'x': 'oops' is not a finite number"):
        read_table(path)
    with pytest.raises(FileError, match="row 2, column 'x': 'oops' is not a finite number"):
        FileRows(path)
    pq.write_table(pa.table({"x": ["1", "2", "oops"], "y": [None, None, "a"]}), path, row_group_size=2)
    for name, cell in (("x", "oops"), ("y", "a")):  # the first rows tell what columns are
        with pytest.raises(FileError, match=f"row 2, column '{name}': '{cell}' is not a finite number"):
            list(FileRows(path, [name]).blocks(2))
    assert [part.tolist() for part in FileRows(path, ["y"], labels=["y"]).blocks(2)] == [[[None], [None]], [["a"]]]
    pq.write_table(pa.table({"x": [1.0, 2.0], "c": ["a", "b"]}), path)
    with pytest.raises(FileError, match="row 0, column 'c': 'a' is not a finite number"):
        FileRows(path, ["x", "c"], takes_text=False)


def test_text_and_dates_are_read_if_asked_for(tmp_path):
    days = ["2024-01-01", "2024-01-02T06:00:00.000000000", "", "2024-01-01", ""]
    rows = zip(
        ["ann", "bob", "cy", "dee", "eve"], ["Rome", ' "Oslo"', "Oslo", "NA", "Rome"], days, "12345", strict=True
    )
    text = "who,city,day,x\n" + "".join(",".join(row) + "\n" for row in rows)
    table = read_table(write(tmp_path / "data.csv", text), text=True)
    assert (table.names, table.left_out) == (["who", "city", "day", "x"], {})
    assert table.kinds == {0: "text", 1: "text", 2: "dates"}
    assert table.values[:, 1].tolist() == ["Rome", "Oslo", "Oslo", None, "Rome"]
    assert np.array_equal(table.values[:, 2].astype(float), [19723, 19724.25, np.nan, 19723, np.nan], equal_nan=True)
    assert read_table(tmp_path / "data.csv", ["who", "x"], text=True).values[0].tolist() == ["ann", 1]
    columns = {"x": [1.0, 2, 3, 4], "flag": [True, False, None, True], "one": ["a"] * 4, "time": [datetime.time(1)] * 4}
    zones = pa.array([datetime.datetime(2024, 1, 1)] * 4, pa.timestamp("ns", "+02:00"))
    kinds = {
        "c": pa.array(["a", "b", None, "a"]).dictionary_encode(),
        "zone": zones,
        "day": [datetime.date(2024, 1, 1)] * 4,
    }
    pq.write_table(pa.table({**columns, **kinds}), tmp_path / "data.parquet")
    table = read_table(tmp_path / "data.parquet", text=True)
    kinds = {1: "booleans", 2: "text", 3: "dates", 4: "dates"}
    assert (table.names, table.kinds) == (["x", "flag", "c", "zone", "day"], kinds)
    assert [*map(type, table.values[:2, 1])] == [bool, bool]
    assert table.values[0].tolist() == [1, 1, "a", 19723, 19723]
    assert table.left_out == {"one": "text, one value", "time": "time64[us]"}
    labels = read_table(tmp_path / "data.parquet", text=["c"])
    assert labels.values[:, 2].tolist() == ["a", "b", None, "a"]


def test_identifiers_are_left_out_as_in_data_frames(tmp_path):
    n = 30
    names = [f"person {i}" for i in range(n)]
    frame = pd.DataFrame({"id": range(n), "who": names, "near": [*range(n - 1), 0], "x": 0.5})
    frame.to_csv(tmp_path / "data.csv", index=False)
    frame.to_parquet(tmp_path / "data.parquet", row_group_size=8, index=False)
    files = [read_table(tmp_path / name, text=True) for name in ("data.csv", "data.parquet")]
    for table in (*files, FileRows(tmp_path / "data.parquet")):
        assert table.names == ["near", "x"]
        assert table.left_out == {
            "id": "whole numbers that count the rows",
            "who": "text, 30 different values",
        }
    assert read_table(tmp_path / "data.csv", ["id", "who"], text=True).names == ["id", "who"]
    assert FileRows(tmp_path / "data.parquet", ["id", "x"]).names == ["id", "x"]
    assert read_table(tmp_path / "data.csv", text=["id"]).names == ["id", "near", "x"]
    assert read_table(tmp_path / "data.csv").names == ["id", "near", "x"]
    frame[["id", "x"]].to_csv(tmp_path / "bare.csv", index=False, header=False)
    assert read_table(tmp_path / "bare.csv", header=False, text=True).values.shape == (n, 2)


def test_true_and_false_are_booleans(tmp_path):
    rows = ["flag,one,mixed,x", "true,TRUE,true,1", ",,0,2", "False,true,1,3"]
    path = write(tmp_path / "data.csv", "\n".join(rows))
    table = read_table(path, text=True)
    assert (table.names, table.kinds) == (["flag", "mixed", "x"], {0: "booleans"})
    assert dict(table.left_out) == {"one": "booleans, one value"}
    assert table.values.tolist() == [[True, 1, 1], [None, 0, 2], [False, 1, 3]]
    assert np.array_equal(read_table(path).values[:, 0], [1, np.nan, 0], equal_nan=True)
    assert read_table(path, text=["flag"]).values[:, 0].tolist() == ["true", None, "False"]
    frame = pd.DataFrame({"flag": [None, None, True, False], "one": [True, None, None, None], "x": [1.0, 2, 3, 4]})
    frame.to_parquet(tmp_path / "data.parquet", row_group_size=2)
    file = FileRows(tmp_path / "data.parquet")
    assert (file.names, file.kinds, file.levels) == (["flag", "x"], {0: "booleans"}, {"flag": [False, True]})
    assert [block[:, 0].tolist() for block in file.blocks(2)] == [[None, None], [True, False]]
    named = FileRows(tmp_path / "data.parquet", ["flag", "one"], labels=["one"], takes_text=False)
    assert (named.kinds, named.levels) == ({1: "booleans"}, {"one": [True]})


def test_cells_of_text_are_read_as_they_are(tmp_path):
    cells = ['say "hi"', '"hi" she said', '"hi"', "x" * 200_000, "a"]
    text = "".join('"' + cell.replace('"', '""') + '",1\n' for cell in [*cells, "a", "a", "a", "a", "a"])
    path = write(tmp_path / "data.csv", "who,x\n" + text)
    assert read_table(path, ["who"], text=True).values[:5, 0].tolist() == cells
    assert read_table(write(path, 'who,x\n1, "say ""hi"""\n'), ["x"], text=True).values[0, 0] == 'say "hi"'
    long = write(tmp_path / "long.csv", f'1,"{"x" * 200_000}"\n')
    assert read_table(long, header=False).values.tolist() == [[1]]


def test_labels_are_text_whatever_they_are(tmp_path):
    path = write(tmp_path / "data.csv", "zip,x\n01234,1\n1234,2\n,3\n")
    assert read_table(path, text=["zip"]).values.tolist() == [["01234", 1], ["1234", 2], [None, 3]]


@pytest.mark.parametrize("cell", ["2020-13-45", "unknown"])
def test_a_column_of_dates_must_hold_only_dates(tmp_path, cell):
    path = write(tmp_path / "data.csv", f"day,x\n2020-01-01,1\n,2\n{cell},3\n2020-01-02,4\n")
    with pytest.raises(FileError, match=rf"line 4, column 'day' \(1\): '{cell}' is not a date"):
        read_table(path, text=True)
    assert read_table(path, text=["day"]).kinds == {0: "text"}
    assert read_table(path).left_out == {"day": "dates"}
    pq.write_table(pa.table({"day": ["2020-01-01", None, cell, "2020-01-02"]}), tmp_path / "data.parquet")
    with pytest.raises(FileError, match=f"row 2, column 'day': '{cell}' is not a date"):
        FileRows(tmp_path / "data.parquet")
    notes = write(tmp_path / "notes.csv", f"note,x\n2020-01-01,1\nlate,2\n{cell},3\n")
    assert read_table(notes, text=["note"]).kinds == {0: "text"}
    assert read_table(notes, text=True).kinds == {0: "text"}  # most are no dates


def test_delimiters_at_the_ends_of_lines_make_no_column(tmp_path):
    path = write(tmp_path / "data.csv", "x;y;\n1;2;\n3;4;\n")
    assert read_table(path) == (pytest.approx(np.array([[1, 2], [3, 4]])), ["x", "y"], {"Unnamed: 2": "empty"}, {})
    assert np.isnan(read_table(path, ["Unnamed: 2"]).values).all()
    table = read_table(write(path, "x,,y,\n1,,2,\n3,5,4,\n"))
    assert (table.names, table.left_out) == (["x", "Unnamed: 1", "y"], {"Unnamed: 3": "empty"})


def test_large_text_with_newlines_in_quotes(tmp_path):
    rows = "".join(f'"name {i}\nof two lines",{i}\n' for i in range(300_000))  # more than a block
    table = read_table(write(tmp_path / "data.csv", f"name,x\n{rows}"))
    assert table.values[:, 0].tolist() == list(range(300_000))
    assert table.left_out == {"name": "text"}


@pytest.mark.parametrize("index", [[0, 1], ["p", "q"], pd.MultiIndex.from_tuples([(1, 2), (3, 4)])])
@pytest.mark.parametrize("names", [["x", "y"], ["0", "1"]])
def test_the_index_in_csv_is_no_feature(tmp_path, index, names):
    frame, path = FRAME.set_axis(names, axis=1).set_axis(index), tmp_path / "data.csv"
    frame.to_csv(path)
    table = read_table(path)
    assert table.names == names
    assert table.left_out == {f"Unnamed: {i}": INDEX for i in range(frame.index.nlevels)}
    assert np.array_equal(table.values, FRAME)
    if list(index) == [0, 1]:
        assert read_table(path, [names[1], "Unnamed: 0"]).values.tolist() == [[3, 0], [4, 1]]
    frame.to_csv(path, header=False, index=False)
    assert read_table(path).names is None


@pytest.mark.parametrize(("name", "stored"), [(None, "__index_level_0__"), ("time", "time")])
def test_the_index_in_parquet_is_no_feature(tmp_path, name, stored):
    path = tmp_path / "data.parquet"
    FRAME.set_axis(pd.Index([7, 9], name=name)).to_parquet(path)
    for table in (read_table(path), FileRows(path)):
        assert table.names == ["x", "y"]
        assert table.left_out == {stored: INDEX}
    assert np.array_equal(read_table(path).values, FRAME)
    assert next(FileRows(path).blocks(10)).tolist() == FRAME.to_numpy().tolist()
    assert read_table(path, [stored, "x"]).values.tolist() == [[7, 1], [9, 2]]
    assert FileRows(path, [stored]).names == [stored]
    FRAME.to_parquet(path)
    assert read_table(path) == (pytest.approx(FRAME.to_numpy()), ["x", "y"], {}, {})


@pytest.mark.parametrize(
    ("text", "options", "values"),
    [
        ("a;b\n1,5;2\n", {}, [[1.5, 2]]),
        ("a\tb\n1,5\t-2,5e1\n", {}, [[1.5, -25]]),
        ("a\n1,5\n2,5\n", {}, [[1.5], [2.5]]),
        ("1,5;NA\n2;3,5\n", {}, [[1.5, np.nan], [2, 3.5]]),
        ('a,b\n"1,5","2"\n', {"separator": ";", "header": True}, None),
        ("a|b\n1,5|2\n", {"separator": "|"}, [[1.5, 2]]),
        ("a;b\n1.5;2\n", {}, None),
    ],
)
def test_decimal_commas(tmp_path, text, options, values):
    path = write(tmp_path / "data.csv", text)
    if values is None:
        with pytest.raises(FileError, match=r"no column holds numbers|--decimal \."):
            read_table(path, decimal=",", **options)
    else:
        assert np.array_equal(read_table(path, decimal=",", **options).values, values, equal_nan=True)


def test_separators(tmp_path):
    path = write(tmp_path / "data.csv", "a b|c\n1|2\n")
    assert column_names(path, separator="|") == ["a b", "c"]
    assert read_table(path, separator="|").values.tolist() == [[1, 2]]
    assert read_table(write(tmp_path / "t.csv", "a;x\tb\n1\t2\n"), separator="\\t").names == ["a;x", "b"]
    blanks = write(tmp_path / "blanks.txt", "# made\n  x    y \n 1.5  2\n   \n3     4\n")
    assert read_table(blanks) == (pytest.approx(np.array([[1.5, 2], [3, 4]])), ["x", "y"], {}, {})
    assert read_table(write(tmp_path / "blanks.csv", "1   2\n"), separator=" ").values.tolist() == [[1, 2]]
    for options in ({"separator": "ab"}, {"separator": ","}, {"separator": '"', "decimal": "."}, {"decimal": ";"}):
        with pytest.raises(InvalidInputError, match="must be"):
            read_table(path, **{"decimal": ",", **options})


@pytest.mark.parametrize("ending", ["csv.gz", "tsv.GZ", "txt.gz", "csv.bz2", "csv.zst"])
def test_compressed_text(tmp_path, ending):
    path = tmp_path / f"data.{ending}"
    codec = {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}[path.suffix[1:].lower()]
    with pa.output_stream(path, compression=codec) as stream:
        stream.write(b"x y\n1 2\n" if "txt" in ending else b"x\ty\n1\t2\n")
    table = read_table(path)
    assert (table.names, table.values.tolist()) == (["x", "y"], [[1, 2]]) == (column_names(path), [[1, 2]])
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(FileError):
        read_table(path)
    with pytest.raises(FileError, match="must end in"):
        read_table(write(tmp_path / "data.parquet.gz", ""))


def test_compressed_text_in_several_parts(tmp_path):
    (tmp_path / "data.csv.gz").write_bytes(gzip.compress(b"x\n1\n") + gzip.compress(b"2\n"))
    assert read_table(tmp_path / "data.csv.gz").values.tolist() == [[1], [2]]


def test_npy(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.int32).reshape(3, 2))
    assert read_table(tmp_path / "a.npy").values.dtype == np.float64
    assert read_table(tmp_path / "a.npy", ["1"]).values.tolist() == [[1], [3], [5]]
    np.save(tmp_path / "b.npy", np.arange(3.0))
    assert read_table(tmp_path / "b.npy").values.shape == (3, 1)
    np.save(tmp_path / "c.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(FileError, match=r"must hold numbers.*got object"):
        read_table(tmp_path / "c.npy")
    np.save(tmp_path / "d.npy", np.array(["x"]))
    with pytest.raises(FileError, match="must hold numbers"):
        read_table(tmp_path / "d.npy")
    with (tmp_path / "archive.npy").open("wb") as stream:
        np.savez(stream, x=np.zeros(3))
    for damage in (0, 30):
        content = (tmp_path / "archive.npy").read_bytes()
        (tmp_path / "archive.npy").write_bytes(content[: len(content) - damage])
        with pytest.raises(FileError, match=r"not a \.npy file.*save one array"):
            read_table(tmp_path / "archive.npy")
    np.save(tmp_path / "e.npy", np.array([[0.0, np.inf]]))
    with pytest.raises(FileError, match="row 0, column 1"):
        read_table(tmp_path / "e.npy")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"(5, 2)", b"(-100, 2)", r"must hold numbers of shape \(n,\) or \(n, d\) with d ≥ 1, got float64 \(-100, 2\)"),
        (b"(5, 2)", b"(5, -200)", r"must hold numbers .*, got float64 \(5, -200\)"),
        (b"(5, 2)", b"(5, True)", r"must hold numbers .*, got float64 \(5, True\)"),
        (b"(5, 2)", b"(1" + 22 * b"0" + b", 2)", r"80 bytes are too few for float64 \(10{22}, 2\)"),
        (b"(5, 2)", b"(2305843009213693952, 2)", "80 bytes are too few"),  # 2⁶¹: its bytes leave 64 bits
        (b"(5, 2)", b"(0, 4611686018427387904)", "not a .npy file of numbers"),
        (b"(5, 2)", b"{{{", "not a .npy file of numbers"),
        (b"<f8", b"zz9", "not a .npy file of numbers .*'zz9'"),
        (b"\x93NUMPY\x01", b"\x93NUMPY\x09", "not a .npy file of numbers"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_damaged_headers(tmp_path, old, new, message):
    path, buffer = tmp_path / "a.npy", io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (5, 2)})
    header = buffer.getvalue()
    damaged = header.replace(old, new).rstrip().ljust(len(header) - 1) + b"\n"
    path.write_bytes(damaged + bytes(80))
    for read in (read_table, FileRows):
        with pytest.raises(FileError, match=rf"a\.npy: .*{message}"):
            read(path)


@pytest.mark.parametrize("shape", [(), (5, 0), (0, 0), (2, 3, 4)])
def test_arrays_that_are_no_tables(tmp_path, shape):
    np.save(tmp_path / "a.npy", np.zeros(shape))
    for read in (read_table, FileRows, column_names, RTBMDensity().fit):
        with pytest.raises(FileError, match=r"a\.npy: must hold numbers of shape \(n,\) or \(n, d\)"):
            read(tmp_path / "a.npy")


def test_tables_without_columns(tmp_path):
    pq.write_table(pa.table({}), tmp_path / "a.parquet")
    for read in (read_table, FileRows, RTBMDensity().fit):
        with pytest.raises(FileError, match=r"a\.parquet: there are no columns"):
            read(tmp_path / "a.parquet")
    with pytest.raises(InvalidInputError, match="n_features ≥ 1, got 0"):
        RTBMDensity().fit([np.zeros((5, 0))])


def test_parquet(tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": [1, 2, None], "y": [0.5, 1.5, 2.5], "label": ["a", "b", "c"]}), path)
    table = read_table(path, ["y", "x"])
    assert table.names == ["y", "x"]
    assert np.array_equal(table.values, [[0.5, 1], [1.5, 2], [2.5, np.nan]], equal_nan=True)
    with pytest.raises(FileError, match="row 0, column 'label': 'a' is not a finite number"):
        read_table(path, ["label"])
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
def test_processes_share_the_rows_of_a_file(tmp_path, kind):
    values = np.append(np.arange(49.0), 0.0)  # no numbers of rows, which are left out
    path = tmp_path / f"data.{kind}"
    if kind == "npy":
        np.save(path, np.column_stack([values, -values]))
    else:
        pq.write_table(pa.table({"x": values, "y": -values}), path, row_group_size=7)
    shares = [list(FileRows(path, None, rank, 3).blocks(4)) for rank in range(3)]
    rows = np.concatenate([part for share in shares for part in share])
    assert np.array_equal(rows, np.column_stack([values, -values]))
    assert all(len(part) <= 4 for share in shares for part in share)
    assert [share[0][0, 0] for share in shares] == [FileRows(path, None, rank, 3).first for rank in range(3)]
    chosen = FileRows(path, ["1" if kind == "npy" else "y"])
    assert next(chosen.blocks(50)).shape[1] == 1
    with pytest.raises(FileError, match="read in blocks"):
        FileRows(write(tmp_path / "data.csv", "1\n"))
