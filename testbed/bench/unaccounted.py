"""An agent that measures no costs: `python -m sbon_testbed.bench.unaccounted ARGUMENT...`.

`sbon bench costs` compares it with a normal agent. It runs queries, but does not measure the costs of batches or how long they wait.
"""

from sbon.cost.waiting import WaitRecorder
from sbon.execution.port_costs import PortCosts
from sbon_agent.__main__ import main


def leave_out() -> None:
    """Turns off the measurement of costs and waits in this process."""

    def nothing(*_: object, **__: object) -> None:
        pass

    for owner, names in ((PortCosts, ("took", "continued", "state", "sent")), (WaitRecorder, ("late", "waited"))):
        for name in names:
            setattr(owner, name, nothing)


if __name__ == "__main__":
    leave_out()
    raise SystemExit(main())
