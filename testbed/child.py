"""Becomes an agent that cannot outlive the testbed: `python -m testbed.child PARENT_PID ARGUMENT...`.

The kernel is asked to kill this process when its parent dies, however that happens; only then does it turn into the agent.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent and replace it by the agent."""
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("the testbed has ended")
    os.execv(sys.executable, [sys.executable, "-P", "-m", "agent", *sys.argv[2:]])


if __name__ == "__main__":
    main()
