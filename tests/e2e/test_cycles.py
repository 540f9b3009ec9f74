"""Two agents in processes of their own: whatever becomes of them, both list the same, and everything can be dropped and made again."""

from pathlib import Path

import pytest

from tests.cycles import run

AGREE_S_LOADED = 20.0
"""On a machine where other tests run; less than the half minute after which agents exchange their tables anyway."""


@pytest.mark.slow
def test_a_cycle(tmp_path: Path) -> None:
    run(tmp_path, 1, print, AGREE_S_LOADED)


@pytest.mark.soak
def test_ten_cycles(tmp_path: Path) -> None:
    run(tmp_path, 10, print)
