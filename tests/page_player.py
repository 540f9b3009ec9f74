"""Runs commands of the pages against real agents, and compares what they print with what the pages say."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sbon.cli.__main__ import run
from tests.documents import Command
from tests.processes import WAIT_S, Process, wait_until

ASKED_AGAIN = {"coordinates", "explain", "head", "members", "operators", "queries", "rtt", "status"}
"""Commands that only look, and are repeated until they print what the page says: figures of a young agent are not all there yet."""

_ID = re.compile(r"\b([A-Za-z][\w-]*)\.[0-9a-z]{7}\b(?=[. ]|$)")
_HEX = re.compile(r"-[0-9a-f]{8}-")
_UNSETTLED = re.compile(r"; the coordinates of [^;\n]+ have not settled: some seconds later, operators may go elsewhere$", re.MULTILINE)
"""What agents add as long as round-trip times vary much, as on a busy machine; pages leave it out."""
_NUMBER = re.compile(r"\d+(?:[,.]\d+)*(?:e[+-]?\d+)?")


def shape(line: str) -> str:
    """Returns a line without what differs from run to run: numbers, the random part of names, the widths of columns.

    Examples
    --------
    >>> shape("ams.1a2pm1m.01.0  source   83.3 kB/s  symbol-4")
    'ams.ID.# source #B/s symbol-#'
    """
    line = _ID.sub(r"\1.ID", _HEX.sub("-HEX-", line))
    return re.sub(r"# [kM]?B", "#B", " ".join(_NUMBER.sub("#", re.sub(r"(?<=ID)[.\d]+", ".#", line)).split()))


def unsaid(expected: str, said: str) -> list[str]:
    """Returns the lines of a page that a program did not print. `...` stands for any lines, and `…` for the rest of a cell.

    Examples
    --------
    >>> unsaid("name  rows\\na  12\\nb, which…  7\\n...\\n", "name   rows\\na        3\\nb, which is long  1\\nc  1\\n")
    []
    >>> unsaid("name  rows\\n", "name  state\\n")
    ['name  rows']
    """
    printed = [shape(line) for line in said.splitlines()]
    wanted = [line for line in expected.splitlines() if line.strip() != "..."]
    patterns = [re.compile(re.escape(shape(line)).replace("…", ".*")) for line in wanted]
    return [line for line, pattern in zip(wanted, patterns, strict=True) if not any(map(pattern.fullmatch, printed))]


class Player:
    """Runs commands one after the other in a folder.

    `meaning` says what stands here for words of the pages: addresses, folders, names of queries. Commands that start an agent add to it,
    and so do those that start a query.
    """

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.capsys = capsys
        self.monkeypatch = monkeypatch
        self.agents: list[Process] = []
        self.meaning: dict[str, str] = {}
        self.config = folder / "settings.toml"
        # Operators are placed and shared as on an idle machine, however busy this one is.
        self.config.write_text("[placement]\nload_weight = 0.0\n[hosting]\nshare_load_max = 2.0\n")
        monkeypatch.chdir(folder)

    def play(self, command: Command) -> str:
        """Runs a command, demands what the page says of its output, and returns the output."""
        said = self._run(command)

        def is_as_told() -> bool:
            nonlocal said
            if unsaid(command.output, said):
                said = self._run(command)
            return not unsaid(command.output, said)

        if ASKED_AGAIN & {word for words in command.steps() for word in words[:2]}:
            with contextlib.suppress(AssertionError):  # the one below says more
                wait_until(is_as_told)
        assert unsaid(command.output, said) == [], f"{command.page}:{command.line}: `{command.text}` has printed:\n{said}"
        return said

    def end(self) -> None:
        """Ends the agents."""
        for agent in self.agents:
            agent.end()

    def _run(self, command: Command) -> str:
        said = ""
        for words in command.steps():
            words = [self._meant(word) for word in words]
            words, target = (words[: words.index(">")], words[-1]) if ">" in words else (words, None)
            said = self._program(words, command, said)
            if target is not None:
                (self.folder / target).write_text(said)
        return said

    def _meant(self, word: str) -> str:
        for page, here in sorted(self.meaning.items(), key=lambda pair: -len(pair[0])):
            word = word.replace(page, here)
        return word

    def _program(self, words: list[str], command: Command, typed: str) -> str:
        match words:
            case ["sbon", "agent", *options]:
                return self._agent(options)
            case ["sbon", *arguments]:
                return self._sbon(arguments, command, typed)
            case ["echo", text]:
                return f"{text}\n"
            case ["cat", name]:  # the reader writes the file that the page shows
                (self.folder / name).write_text(command.output)
                return command.output
            case ["head", "-1", name]:
                return (Path(name).read_text().splitlines(keepends=True) or [""])[0] if Path(name).exists() else ""
            case ["find" | "python", *others]:
                program = sys.executable if words[0] == "python" else words[0]
                done = subprocess.run([program, *others], cwd=self.folder, capture_output=True, text=True, timeout=WAIT_S)
                assert (done.returncode, done.stderr) == (0, "")
                return done.stdout
        raise AssertionError(f"who runs {words}?")

    def _sbon(self, arguments: list[str], command: Command, typed: str) -> str:
        self.monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        code = run(arguments)
        out, error = self.capsys.readouterr()
        out = _UNSETTLED.sub("", out)
        assert (code == 0) == (error == ""), (arguments, code, error)
        told, known = (re.search(r"sbon tail (\S+)", text) for text in (command.output, out))
        if told and known:
            self.meaning[told[1]] = known[1]
        return out or error

    def _agent(self, options: list[str]) -> str:
        name = options[options.index("--name") + 1]
        agent = Process(self.folder, name, "--config", str(self.config), "--bind", "127.0.0.1:0", *options).wait_until_ready()
        self.agents.append(agent)
        if len(self.agents) == 1:
            self.monkeypatch.setenv("SBON_SOCKET", str(agent.directory))
            self.meaning |= {"127.0.0.1:7946": agent.ask("status")["address"], "~/.local/state/sbon": str(agent.directory)}
        return ""
