"""A host checks again whether an operator can be shared when a query comes to use it after an offer."""

from types import SimpleNamespace

import pytest

from sbon.errors import PlacementError
from sbon.execution.life import State
from sbon.execution.waiting import Waiting
from sbon.placement.reservations import HostingConfig
from sbon.query.plan import LinkSpec
from sbon.supervision.sharing import Sharing
from sbon.wire.deployment import End, Use, User


def test_an_operator_that_has_ended_since_it_was_offered_is_not_joined():
    """Its rows have passed: the query would end at once, without rows."""
    running = SimpleNamespace(id="p.1", state=State.RUNNING, outputs={}, users={"p": "b"}, waiting=Waiting({}), movable=True)
    operators = SimpleNamespace(instances={"p.1": running}, me="a", room=SimpleNamespace(is_leaving=False))
    sharing = Sharing(operators, HostingConfig(), lambda: 0.0)
    use = Use(operator="p.1", user=User("q", "b"), outputs=(End(LinkSpec("p.1>q.1:0", "p.1", "q.1", 0, 1.0, 8.0), "b", ()),))
    sharing.check(use)

    running.users = {"r": "c"}
    with pytest.raises(PlacementError, match="the query that it was made for has ended"):
        sharing.check(use)
    operators.room.is_leaving = True
    with pytest.raises(PlacementError, match=r"operator p\.1 is not shared: a is leaving"):
        sharing.check(use)
    running.state = State.FINISHED
    with pytest.raises(PlacementError, match=r"operator p\.1 is not shared: it has ended"):
        sharing.check(use)
