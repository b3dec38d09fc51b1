"""The public API answers as `golden.json` says: see `golden.py`."""

import json

import numpy as np
import pytest

import golden

pytestmark = pytest.mark.filterwarnings("ignore")  # scores are compared, not messages
KNOWN = json.loads(golden.PATH.read_text(encoding="utf-8"))
LAST_DIGITS = 1e-9
"""Relative to the largest number of an answer, where conditioning costs some digits."""
DIFFERENCES = 1e-6
"""The same of central differences, whose errors are those of values divided by the step."""
BOXES = 2e-4
"""Probabilities of boxes in three dimensions and more are accurate to 1e-4."""
LOSS, LOSS_OF_COMMITTEES, LOSS_OF_UNSTEADY = 0.005, 0.02, 0.05
"""How much worse a fit may be, in nats a row or in the units of its score."""


def test_exact_answers_change_in_their_last_digits_alone():
    found = golden.exact()
    assert list(found) == list(KNOWN["exact"])
    for name, values in found.items():
        expected = np.array(KNOWN["exact"][name])
        tolerance = {"gradient": DIFFERENCES, "box": BOXES}.get(name.split()[-1], LAST_DIGITS)
        np.testing.assert_allclose(
            values, expected, rtol=0, atol=tolerance * (1 + np.abs(expected).max()), err_msg=name
        )


@pytest.mark.parametrize("name", golden.QUALITY)
def test_fits_do_not_get_worse(name):
    loss = LOSS_OF_COMMITTEES if name in golden.COMMITTEES else LOSS_OF_UNSTEADY if name in golden.UNSTEADY else LOSS
    assert golden.QUALITY[name]() >= KNOWN["quality"][name] - loss
