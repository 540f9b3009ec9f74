"""`sbon bench state`: every installed store keeps the counts within its memory."""

import pytest

from sbon.errors import UsageError
from sbon_testbed.bench import state
from sbon_testbed.bench.state import AIM_ROWS_PER_S, measure


@pytest.mark.parametrize("kind", ["int", "text"])
def test_figures_of_the_stores(kind: str):
    result = measure(6_000, 0.25, 12_000, 500, kind, ["runs", "memory"], lambda what: None)
    assert result["aim_rows_per_s"] == AIM_ROWS_PER_S
    runs, memory = result["stores"]["runs"], result["stores"]["memory"]
    assert 0 < runs["in_memory"] < 2_500 < memory["in_memory"] == 6_000
    assert 0 < runs["missed"] < 0.9
    assert (memory["missed"], memory["disk_mb"]) == (0, 0)
    assert runs["disk_mb"] > 0
    assert min(runs["rows_per_s"], memory["rows_per_s"]) > 0


def test_stores_that_are_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(state, "find_spec", lambda package: None)
    told: list[str] = []
    assert measure(1_000, 0.5, 1_000, 100, "int", ["lmdb"], told.append)["stores"] == {}
    assert told == ["lmdb: not measured, the package lmdb is not installed"]


def test_a_batch_that_the_memory_does_not_hold_is_refused_with_the_option_that_helps():
    with pytest.raises(UsageError, match=r"--batch 16384: memory for 0\.1 of 100,000 states .* give --batch (\d+) or less") as refused:
        measure(100_000, 0.1, 1_000, 16_384, "int", ["runs"], lambda what: None)
    assert 1_000 < int(str(refused.value).partition("give --batch ")[2].split()[0]) < 10_000
