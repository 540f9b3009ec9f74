"""Reasons of a host why an operator cannot move now, while consumers do not know yet who feeds them."""

from types import SimpleNamespace
from typing import Any

import pytest

from sbon.execution.life import State
from sbon.migration.migrations import Migrations


def host(staying: set[str]) -> Migrations:
    """Returns a host with an operator q.1 that has passed its only consumer to a multicast beside it."""
    outputs: dict[str, dict[str, Any]] = {
        "q.1": {"q.1>q.1~m:0": SimpleNamespace(staying=set(), link=SimpleNamespace(source="q.1"))},
        "q.1~m": {"q.1>q.2:0": SimpleNamespace(staying=staying, link=SimpleNamespace(source="q.1~m"))},
    }
    instances = {
        name: SimpleNamespace(id=name, movable=True, state=State.RUNNING, stays_for="", outputs=of_one) for name, of_one in outputs.items()
    }
    migrations = object.__new__(Migrations)
    vars(migrations).update(_operators=SimpleNamespace(instances=instances), may_be_rewired=lambda operator: True)
    return migrations


@pytest.mark.parametrize("operator", ["q.1", "q.1~m"])
def test_who_fed_a_consumer_and_who_feeds_it_now_stay_until_the_consumer_knows(operator: str) -> None:
    """If q.1 moved before, the consumer would look for its link there, and would not believe the host of the multicast any more."""
    assert host({"q.1", "q.1~m"}).hindrance(operator) == "consumers have not yet been told which operator feeds them"
    assert not host(set()).hindrance(operator)
