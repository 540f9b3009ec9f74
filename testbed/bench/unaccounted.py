"""An agent that measures no costs: `python -m sbon_testbed.bench.unaccounted ARGUMENT...`.

`sbon bench costs` puts it beside one that does. It runs queries as any other, but knows nothing of what their batches cost, and how long
they wait.
"""

from sbon.cost.waiting import WaitRecorder
from sbon.execution.port_costs import PortCosts
from sbon_agent.__main__ import main


def leave_out() -> None:
    """Makes all agents of this process measure nothing."""

    def nothing(*_: object, **__: object) -> None:
        pass

    for owner, names in ((PortCosts, ("took", "continued", "state", "sent")), (WaitRecorder, ("late", "waited"))):
        for name in names:
            setattr(owner, name, nothing)


if __name__ == "__main__":
    leave_out()
    raise SystemExit(main())
