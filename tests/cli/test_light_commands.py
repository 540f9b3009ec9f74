"""Commands that need no arrays load no heavy library; loading numpy took most of the time of `sbon --help`."""

import subprocess
import sys

import pytest

HEAVY = ("numpy", "polars", "scipy", "sqlglot", "pyspark", "matplotlib", "rich")
PROBE = f"""
import sys
from sbon.cli.__main__ import run
code = run(sys.argv[1:])
print(code, [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["bench", "nexmark", "--help"], 0),
        (["testbed", "run", "--help"], 0),
        (["sql", "--help"], 0),
        (["status", "--socket", "nothing-there"], 1),
        (["status", "--data-dir", "nothing-there"], 1),
        (["sql", "-c", "SELECT 1", "--socket", "nothing-there"], 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_without_arrays_loads_no_heavy_library(arguments, code, tmp_path):
    found = subprocess.run([sys.executable, "-c", PROBE, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stderr.splitlines()[-1] == f"{code} []"


def test_the_types_of_arrays_are_there_when_asked_for():
    import numpy as np
    import numpy.typing as npt

    from sbon import types

    assert (types.FloatArray, types.IntArray) == (npt.NDArray[np.float64], npt.NDArray[np.int64])
    with pytest.raises(AttributeError, match="no attribute 'TextArray'"):
        _ = types.TextArray
