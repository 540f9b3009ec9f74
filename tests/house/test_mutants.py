"""The mutation run reports the mutants of a small tree, and writes nothing into the tree."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.listing import Mutant, chosen, read_mutants
from tests.mutants.run import ROOT, Outcome, Result, as_json, judge, main, run, summary
from tests.processes import wait_until

TESTS = """
from code_under_test import double
def test_double(): assert double(3) == 6
def test_nothing(): assert True
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Returns a tree of a function, a test that checks it, and a test that does not."""
    root = tmp_path / "tree"
    root.mkdir()
    (root / "code_under_test.py").write_text("def double(x):\n    y = x + x\n    return y\n")
    (root / "test_it.py").write_text(TESTS)
    return root


def mutant(name: str, old: str, new: str, tests: str = "test_it.py", **more: object) -> Mutant:
    return Mutant(name=name, file="code_under_test.py", old=old, new=new, tests=(tests,), why="...", **more)


def contents(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def test_each_mutant_gets_the_outcome_that_it_deserves(tree: Path):
    before, said = contents(tree), []
    blocked = "import threading; threading.Event().wait(); y = x"
    mutants = [
        mutant("noticed", "x + x", "x * 3"),
        mutant("no-python", "return y", "return ("),
        mutant("lives", "x + x", "x + 3", "test_it.py::test_nothing"),
        mutant("stale", "x * x", "x"),
        mutant("twice", "x", "z"),
        mutant("no-change", "x + x", "x + x"),
        mutant("hangs", "y = x + x", blocked, seconds=0.3),
        mutant("may-hang", "y = x + x", blocked, seconds=0.3, may_hang=True),
        mutant("no-test", "x + x", "x", "test_it.py::test_missing"),
    ]

    results = run(tree, mutants, 2, said.append, check_first=False)

    expected = ["NOTICED", "NOTICED", "LIVES", "STALE", "STALE", "STALE", "HANGS", "NOTICED", "BROKEN"]
    assert [result.outcome.name for result in results] == expected
    assert [result.mutant for result in results] == mutants
    assert "test_it.py::test_double" in results[0].said
    assert len(said) == len(mutants)
    assert contents(tree) == before


def test_nothing_is_said_of_mutants_where_tests_fail_without_them(tree: Path):
    (tree / "test_it.py").write_text("def test_it(): assert False, 'broken before'")
    with pytest.raises(RuntimeError, match=r"(?s)without any bug.*broken before"):
        run(tree, [mutant("m", "x + x", "x")], 2, print)


def test_ctrl_c_ends_tests_and_leaves_no_copy(tree: Path, tmp_path: Path):
    """The run is a separate process with its own folder for copies."""
    (tree / "test_it.py").write_text(
        "import os, pathlib, threading\ndef test_it():\n"
        f"    pathlib.Path({str(tmp_path / 'runs')!r}).write_text(str(os.getpid()))\n    threading.Event().wait()"
    )
    program = (
        "import pathlib, signal; from tests.mutants.listing import Mutant; from tests.mutants.run import run\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored\n"
        f"one = Mutant(name='m', file='code_under_test.py', old='x + x', new='x', tests=('test_it.py',), why='')\n"
        f"run(pathlib.Path({str(tree)!r}), [one], 2, print, check_first=False)"
    )
    copies = tmp_path / "copies"
    copies.mkdir()
    environment = {**os.environ, "TMPDIR": str(copies), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: (tmp_path / "runs").exists() and (tmp_path / "runs").read_text(), timeout_s=60)
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.stderr.read()

    assert list(copies.iterdir()) == []
    assert not Path("/proc", (tmp_path / "runs").read_text()).exists()


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [
        (0, "3 passed in 0.1s", Outcome.LIVES),
        (0, "3 skipped in 0.1s", Outcome.SKIPPED),
        (1, "FAILED test_it.py::test_double - AssertionError", Outcome.NOTICED),
        (2, "ERROR test_it.py", Outcome.NOTICED),
        (-11, "", Outcome.NOTICED),
        (4, "ERROR: not found", Outcome.BROKEN),
        (5, "no tests ran", Outcome.BROKEN),
        (None, "", Outcome.HANGS),
    ],
)
def test_what_pytest_says_is_understood(code: int | None, said: str, expected: Outcome):
    assert judge(mutant("m", "x", "y"), code, said)[0] is expected


def test_summary_names_all_but_those_that_were_noticed():
    results = [Result(mutant(f"m{number}", "x", "y"), outcome, 1.0, "because") for number, outcome in enumerate(Outcome)]

    text = summary(results, 90.0)

    assert text.startswith("6 mutants in 1.5 minutes: 1 noticed, 1 LIVES")
    assert [f"m{number} " in text for number in range(6)] == [False] + [True] * 5
    assert [one["outcome"] for one in as_json(results, 90.0)["mutants"]] == [outcome.value for outcome in Outcome]


def test_mutants_are_chosen_by_area_name_or_pattern():
    mutants = [mutant(name, "x", "y") for name in ("links/a", "links/b", "streams/a")]

    assert chosen(mutants, ["links"]) == mutants[:2]
    assert chosen(mutants, ["a"]) == [mutants[0], mutants[2]]
    assert chosen(mutants, ["*/b", "streams/a"]) == mutants[1:]
    with pytest.raises(ValueError, match="no mutant matches 'c'"):
        chosen(mutants, ["c"])


def test_list_is_as_it_must_be_and_large_enough():
    mutants = read_mutants()

    assert len(mutants) >= 80
    assert [one.name for one in mutants if not (ROOT / one.file).is_file()] == []
    assert sorted({test for one in mutants for test in one.tests if not (ROOT / test.partition("::")[0]).exists()}) == []
    assert all(one.why.endswith(".") and one.tests for one in mutants)


def test_list_with_a_mistake_is_one_line(tmp_path: Path):
    (tmp_path / "a.toml").write_text("[[mutant]]\nname = 'x'\nfiel = 'y'\n")
    with pytest.raises(ValueError, match=r"a\.toml: "):
        read_mutants(tmp_path)


def test_list_is_printed(capsys: pytest.CaptureFixture[str]):
    assert main(["--list", "streams/zero-nonce*"]) == 0
    assert capsys.readouterr().out.startswith("streams/zero-nonce-for-every-datagram  sbon/membership/gossip.py: ")
