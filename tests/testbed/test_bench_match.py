"""`sbon bench match`: every pattern gives the answers of plain loops, and each key is dealt to one process."""

import pytest

from sbon_testbed.bench import match


@pytest.mark.parametrize("name", match.WORKLOADS)
def test_the_answers_of_every_pattern_are_those_of_plain_loops(name: str) -> None:
    match._check(name, match.ticks(3_000))


def test_wrong_answers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(match.WORKLOADS, "a b+ c", match.WORKLOADS["a b+ c"]._replace(orders=("abc",)))
    with pytest.raises(AssertionError, match="as plain loops give"):
        match._check("a b+ c", match.ticks(3_000))


def test_all_keys_are_dealt_to_one_process_each() -> None:
    parts = [match._timed("a b+ c", 4_000, 1_000, part) for part in range(match.CORES)]
    assert sum(part["rows"] for part in parts) == 4_000
    assert all(part["matches"] > 0 for part in parts)
