"""Reads how much memory this process may use: the machine's, or less if its control groups limit it."""

import os
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


def usable_bytes(groups: Path = GROUPS, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Returns the least of the machine's memory and the limits of this process's control groups, in bytes."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(groups, membership)])


def _limits(groups: Path, membership: Path) -> list[int]:
    """Returns the limits of all control groups of this process, of either version; an empty list if there are none."""
    limits = []
    for line in _text(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            root, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # The limits of parent groups apply too. Inside a container the path may be invisible, but the root is not.
        group = root / path.strip("/")
        while True:
            text = _text(group / name).strip()
            if text.isdigit():  # not "max"
                limits.append(int(text))
            if group == root or root not in group.parents:
                break
            group = group.parent
    return limits


def _text(path: Path) -> str:
    """Returns a small file's text; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
