"""`make mutants`: applies deliberate bugs one by one to copies of the tree, and fails for each that no test notices.

    tests of all mutants, without any bug: one fails -----------------> the run ends: no mutant can be judged
    for each mutant: its old text does not occur exactly once --------> stale
                     one of its tests fails --------------------------> noticed
                     all pass ----------------------------------------> lives
                     they take too long ------------------------------> noticed if may_hang, else hangs
                     all are skipped, or there are none --------------> skipped, broken

The checkout is never changed: each worker has a copy of it in a temporary folder, and restores the file after each mutant.
"""

import argparse
import contextlib
import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutants.listing import Mutant, chosen, read_mutants

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "demo-out", "*-report")
"""Files that copies of the tree leave out."""
WHOLE_S_MAX = 1800.0
"""Longest time for a worker's share of the tests without a bug."""
NO_TESTS = 5
"""pytest's exit code where no test was collected."""


class Outcome(Enum):
    """The outcome of a mutant."""

    NOTICED = "noticed"
    LIVES = "LIVES"
    STALE = "STALE"
    HANGS = "HANGS"
    SKIPPED = "skipped"
    BROKEN = "BROKEN"


GOOD = (Outcome.NOTICED, Outcome.SKIPPED)
"""Outcomes that do not make the run fail. Skipped tests need software that this machine lacks; the summary lists their mutants."""


class Result(NamedTuple):
    """One mutant's outcome."""

    mutant: Mutant
    outcome: Outcome
    seconds: float
    said: str
    """The test that noticed the bug, or the problem."""


class Interrupted(Exception):  # noqa: N818 - no error
    """The run was interrupted or has ended: its tests must stop."""


class Tree:
    """One worker's copy of the checkout."""

    _stamps = itertools.count(int(time.time()))
    """Distinct modification times: Python recognises outdated compiled files by whole seconds and size."""

    def __init__(self, root: Path, copy: Path, stop: threading.Event) -> None:
        self.root = copy
        self._stop = stop
        shutil.copytree(root, copy, ignore=LEFT_OUT, symlinks=True)

    def test(self, tests: Sequence[str], seconds: float, *options: str) -> tuple[int | None, str]:
        """Runs tests; returns pytest's exit code, None after `seconds` (longer on a busy machine), and its output.

        Raises
        ------
        Interrupted
            The run is to end.
        """
        path = os.pathsep.join([str(self.root), str(self.root / "tests" / "names")])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "", "SBON_TEST_PROFILE": "mutants"}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *tests]
        with tempfile.TemporaryFile() as out:
            process = subprocess.Popen(
                command, cwd=self.root, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL, process_group=0
            )
            began = time.monotonic()
            try:
                while process.poll() is None and time.monotonic() - began < seconds * waiting() and not self._stop.is_set():
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(0.1)
            finally:
                code = process.poll()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also ends processes that tests left behind
                process.wait()
            if self._stop.is_set():
                raise Interrupted
            out.seek(0)
            return code, out.read().decode(errors="replace")

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[bool]:
        """Applies the bug to the tree, then restores it. Yields false, with the tree unchanged, if the mutant is stale."""
        path = self.root / mutant.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        changed = mutant.apply(text)
        if changed is None:
            yield False
            return
        self._write(path, changed)
        try:
            yield True
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        stamp = next(self._stamps)
        os.utime(path, (stamp, stamp))


def waiting() -> float:
    """Returns the number of runnable processes per core, at least 1. Tests may take longer by this factor."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def try_mutant(tree: Tree, mutant: Mutant) -> Result:
    """Applies one bug and runs its tests.

    Raises
    ------
    Interrupted
        The run is to end.
    """
    began = time.monotonic()
    with tree.mutated(mutant) as applied:
        if not applied:
            return Result(mutant, Outcome.STALE, 0.0, f"its old text must occur exactly once in {mutant.file}, and differ from the new")
        code, said = tree.test(mutant.tests, mutant.seconds, "-x")
    outcome, text = judge(mutant, code, said)
    return Result(mutant, outcome, time.monotonic() - began, text)


def judge(mutant: Mutant, code: int | None, said: str) -> tuple[Outcome, str]:
    """Returns a mutant's outcome and a text, from pytest's exit code and output."""
    lines = [line for line in said.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "nothing printed"
    if code is None:
        return (Outcome.NOTICED if mutant.may_hang else Outcome.HANGS), f"not done after {mutant.seconds:g} s"
    if code == 0:
        skipped = " passed" not in f" {last}"
        return (Outcome.SKIPPED, last) if skipped else (Outcome.LIVES, f"{last}; {mutant.why}")
    if code in (1, 2):
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return Outcome.NOTICED, failed[0].partition(" ")[2].partition(" - ")[0] if failed else last
    if code < 0:
        return Outcome.NOTICED, f"ended by signal {-code}"
    return Outcome.BROKEN, "no test is called so" if code == NO_TESTS else last


def run(root: Path, mutants: Sequence[Mutant], workers: int, say: Callable[[str], None], *, check_first: bool = True) -> list[Result]:
    """Tries all mutants in copies of a tree, `workers` at a time; returns a result for each, in order.

    Raises
    ------
    RuntimeError
        The tests fail without any bug.
    KeyboardInterrupt
        The user has pressed Ctrl-C; no process or copy is left behind.
    """
    stop = threading.Event()
    with tempfile.TemporaryDirectory(prefix="sbon-mutants-") as folder:
        trees = [Tree(root, Path(folder) / f"tree{number}", stop) for number in range(workers)]
        if check_first:
            failures = _in_parallel(trees, stop, _shares(mutants, workers), _check)
            if problem := next(filter(None, failures), ""):
                raise RuntimeError(f"tests fail without any bug, so mutants cannot be judged:\n{problem}")
            say("tests pass without bugs")
        done = itertools.count(1)

        def attempt(tree: Tree, mutant: Mutant) -> Result:
            result = try_mutant(tree, mutant)
            say(f"{next(done):4}/{len(mutants)}  {result.outcome.value:8} {result.seconds:6.1f} s  {mutant.name}: {result.said}")
            return result

        return _in_parallel(trees, stop, mutants, attempt)


def _shares(mutants: Sequence[Mutant], workers: int) -> list[list[str]]:
    """Returns all tests that mutants name, each once, in shares with equal numbers of files."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    files = {test for test in tests if "::" not in test}
    wanted = [test for test in tests if test in files or test.partition("::")[0] not in files]
    by_file = [list(own) for _, own in itertools.groupby(wanted, lambda test: test.partition("::")[0])]
    shares = [list(itertools.chain.from_iterable(by_file[number::workers])) for number in range(workers)]
    return [share for share in shares if share]


def _check(tree: Tree, tests: list[str]) -> str:
    code, said = tree.test(tests, WHOLE_S_MAX)
    return "" if code == 0 else f"{'not done in time' if code is None else f'exit code {code}'}\n{said[-6000:]}"


def _in_parallel(trees: Sequence[Tree], stop: threading.Event, items: Sequence[Any], work: Callable[[Tree, Any], Any]) -> list[Any]:
    """Does `work` on each item in a free tree; returns the results in order of the items."""
    todo: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    for numbered in enumerate(items):
        todo.put(numbered)
    found: dict[int, Any] = {}
    problems: list[BaseException] = []

    def serve(tree: Tree, ended: threading.Event) -> None:
        try:
            while not stop.is_set():
                number, item = todo.get_nowait()
                found[number] = work(tree, item)
        except (queue.Empty, Interrupted):
            return
        except BaseException as problem:
            problems.append(problem)
            stop.set()
        finally:
            ended.set()

    # Not `join`: after a join that Ctrl-C interrupts, Python 3.11 takes the thread for ended and leaves its tests running.
    begun: list[threading.Event] = []
    try:
        for tree in trees:
            begun.append(threading.Event())
            threading.Thread(target=serve, args=(tree, begun[-1])).start()
        for ended in begun:
            ended.wait()
    finally:
        if len(found) < len(items):
            stop.set()
        for ended in begun:
            ended.wait()
    if problems:
        raise problems[0]
    return [found[number] for number in range(len(items))]


def summary(results: Sequence[Result], seconds: float) -> str:
    """Returns lines for people: the count of each outcome, and all mutants that were not noticed."""
    counts = ", ".join(f"{sum(one.outcome is outcome for one in results)} {outcome.value}" for outcome in Outcome)
    lines = [f"{len(results)} mutants in {seconds / 60:.1f} minutes: {counts}"]
    lines += [
        f"  {one.outcome.value}: {one.mutant.name} ({one.mutant.file}): {one.said}" for one in results if one.outcome is not Outcome.NOTICED
    ]
    return "\n".join(lines)


def as_json(results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """Returns the results for scripts."""
    listed = [
        {"name": one.mutant.name, "file": one.mutant.file, "outcome": one.outcome.value, "seconds": round(one.seconds, 2), "said": one.said}
        for one in results
    ]
    return {"seconds": round(seconds, 1), "mutants": listed}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="make mutants", description="Apply deliberate bugs, and fail for each that no test notices.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="areas, names or patterns (membership, 'links/*'); all if none is given")
    parser.add_argument("--list", action="store_true", help="name the mutants and end")
    parser.add_argument("--json", metavar="FILE", help="write the results there; - for standard output")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="how many at a time (2)")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without bugs first")
    given = parser.parse_args(arguments)
    try:
        mutants = chosen(read_mutants(), given.names)
    except ValueError as problem:
        parser.error(str(problem))
    if given.workers < 1:
        parser.error(f"--workers {given.workers}, expected 1 or more")
    if given.list:
        print("\n".join(f"{mutant.name}  {mutant.file}: {mutant.why}" for mutant in mutants))
        return 0
    began = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs, and their children, ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    try:
        results = run(ROOT, mutants, given.workers, lambda line: print(line, file=sys.stderr, flush=True), check_first=not given.unchecked)
    except RuntimeError as problem:
        print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    seconds = time.monotonic() - began
    if given.json == "-":
        print(json.dumps(as_json(results, seconds), indent=1))
    elif given.json:
        Path(given.json).write_text(json.dumps(as_json(results, seconds), indent=1), encoding="utf-8")
    print(summary(results, seconds), file=sys.stderr if given.json == "-" else sys.stdout)
    return 0 if all(one.outcome in GOOD for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
