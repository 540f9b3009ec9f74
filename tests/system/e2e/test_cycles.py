"""Two agents in separate processes: whatever happens to them, both list the same, and everything can be dropped and recreated."""

from pathlib import Path

import pytest

from tests.cycles import run

AGREE_S_LOADED = 20.0
"""Seconds until agents agree on a busy machine; less than the half minute after which they exchange their tables anyway."""


@pytest.mark.slow
def test_a_cycle(tmp_path: Path) -> None:
    run(tmp_path, 1, print, AGREE_S_LOADED)


@pytest.mark.soak
def test_ten_cycles(tmp_path: Path) -> None:
    run(tmp_path, 10, print)
