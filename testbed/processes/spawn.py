"""Starts agents that die with the testbed, however it ends."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import IO


def spawn(arguments: Sequence[str], log: IO[bytes], namespace: int | None = None, module: str = "sbon_agent") -> "subprocess.Popen[bytes]":
    """Starts an agent that dies with this process, in the network namespace of a descriptor if one is given."""
    where = [] if namespace is None else ["--in-namespace", str(namespace)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "sbon_testbed.processes.child", str(os.getpid()), *where, module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        process_group=0,
        pass_fds=() if namespace is None else (namespace,),
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    # Sixteen agents share a few cores: with a polars or BLAS thread pool for each, they would only wait for each other. They start from
    # compiled modules, as an installed agent does, because compiling takes longer than the rest of the start.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
