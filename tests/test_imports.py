"""What importing costs: names come when they are used, and help does not wait for torch."""

import subprocess
import sys

import numpy as np
import pytest

import rtbm


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_imports_no_torch():
    assert run("import sys, rtbm; print(dir(rtbm)); assert 'torch' not in sys.modules")


def test_layers_and_machines_do_not_import_the_compiler_of_torch():
    run("import sys, rtbm.nn; assert 'torch._dynamo' not in sys.modules")


def test_importing_all_names_imports_no_panel():
    run("import sys, rtbm; [getattr(rtbm, n) for n in rtbm.__all__]; assert not {'panel', 'bokeh'} & set(sys.modules)")


def test_a_committee_is_loaded_and_used_without_what_only_fits_and_pictures_need(tmp_path):
    X = rtbm.datasets.gamma.sample(60)
    committee = rtbm.RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], cv=2, random_state=0).fit(X)
    rtbm.save(committee, tmp_path / "m.rtbm")
    np.save(tmp_path / "x.npy", X)
    run(
        "import sys\n"
        "from rtbm.cli.app import app\n"
        f"app(['score', {str(tmp_path / 'm.rtbm')!r}, {str(tmp_path / 'x.npy')!r}], standalone_mode=False)\n"
        "unused = {'sklearn.' + name for name in ('cluster', 'linear_model', 'metrics', 'model_selection')}\n"
        "assert not (unused | {'matplotlib', 'cma', 'rtbm.plotting'}) & set(sys.modules)\n"
    )


def test_public_names_are_listed_and_there():
    assert set(rtbm.__all__) <= set(dir(rtbm))
    for name in rtbm.__all__:
        assert getattr(rtbm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'RTBMDensty'"):
        _ = rtbm.RTBMDensty


def test_help_explains_every_public_name():
    errors = {name for name in rtbm.__all__ if name.endswith(("Error", "Warning"))}
    details = {"Estimate", "ThetaMoments", "__version__"}  # what functions return
    assert not {name for name in rtbm.__all__ if name not in rtbm.__doc__} - errors - details
    for word in rtbm.__doc__.replace("`RTBMDensityCV().fit(X)`", "").split("`")[1::2]:
        assert hasattr(rtbm, word) or hasattr(rtbm.RTBMDensity, word) or word.split(".")[0] in ("nn", "rtbm"), word


CALLS = [
    ("--help",),
    ("fit", "--help"),
    ("fti",),
    ("fit", "--seed", "x"),
    ("fit", "--hidden", "x"),
    ("fit", "--bounds", "1,0"),
    ("fit", "absent.csv"),
    ("score", "absent.rtbm", "absent.csv"),
    ("sample", "absent.rtbm"),
    ("info", "absent.rtbm"),
    ("plot", "absent.rtbm"),
    ("explore", "--help"),
    ("explore", "absent.csv"),
    ("explore", "absent.rtbm"),
]


def test_help_usage_errors_and_missing_files_import_no_torch():
    run(
        "import sys\n"
        "from rtbm.cli import main\n"
        f"for call in {CALLS!r}:\n"
        "    sys.argv = ['rtbm', *call]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as stop:\n"
        "        assert (stop.code == 0) == ('--help' in call), call\n"
        "    assert not {'torch', 'numpy', 'pyarrow', 'sklearn'} & set(sys.modules), call\n"
    )
