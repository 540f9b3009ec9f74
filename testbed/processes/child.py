"""Becomes an agent that cannot outlive the testbed: `python -m sbon_testbed.processes.child PARENT_PID [--in-namespace DESCRIPTOR]
MODULE ARGUMENT...`.

This process first asks the kernel to kill it when its parent dies, however that happens. Then it enters the network namespace of the
descriptor, if one is given, and becomes the agent.
"""

import os
import sys

from sbon_testbed.kernel import die_with_parent, enter_network_namespace


def main() -> None:
    """Ties this process to its parent and replaces it by the agent."""
    parent, arguments = int(sys.argv[1]), sys.argv[2:]
    die_with_parent()
    if os.getppid() != parent:
        sys.exit("the testbed has ended")
    if arguments[:1] == ["--in-namespace"]:
        namespace = int(arguments[1])
        enter_network_namespace(namespace)
        os.close(namespace)
        arguments = arguments[2:]
    os.execv(sys.executable, [sys.executable, "-P", "-m", *arguments])


if __name__ == "__main__":
    main()
