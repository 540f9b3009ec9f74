"""`sbon keys` against real agents, and its error messages."""

import json
import os
import signal
import stat
from collections.abc import Callable, Iterator

import pytest

from sbon.cli.__main__ import run
from sbon.cli.keys import read_key
from sbon.errors import ConfigError
from sbon.sealing import KeyRing, generate_key, key_id
from tests.processes import Process, wait_until

OLD, NEW = b"o" * 32, b"n" * 32
OLD_ID, NEW_ID = key_id(OLD).hex(), key_id(NEW).hex()


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def make(name: str, *options: str) -> Process:
        process = Process(tmp_path, name, "--bind", "127.0.0.1:0", *options)
        started.append(process)
        return process

    yield make
    for process in started:
        process.end(signal.SIGKILL)


def key_file(tmp_path, name: str, *keys: bytes) -> str:
    path = tmp_path / f"{name}.key"
    path.write_text("".join(generate_key(key) + "\n" for key in keys))
    path.chmod(0o600)
    return str(path)


def sbon(capsys, agent: Process, *arguments: str) -> tuple[int, str, str]:
    code = run([*arguments, "--socket", str(agent.directory)])
    said = capsys.readouterr()
    return code, said.out, said.err


def statuses(agent: Process) -> dict[str, str]:
    return {member["name"]: member["status"] for member in agent.ask("members")}


def test_a_cluster_s_key_is_changed_from_one_agent_and_survives_a_restart(start, tmp_path, capsys):
    a = start("a", "--key-file", key_file(tmp_path, "a", OLD)).wait_until_ready()
    address = a.ask("status")["address"]
    b = start("b", "--join", address, "--key-file", key_file(tmp_path, "b", OLD)).wait_until_ready()
    wait_until(lambda: statuses(a) == statuses(b) == {"a": "alive", "b": "alive"})

    for arguments, after in (
        (("install", key_file(tmp_path, "new", NEW)), [OLD_ID, NEW_ID]),
        (("use", NEW_ID), [NEW_ID, OLD_ID]),
        (("remove", OLD_ID), [NEW_ID]),
        (("list",), [NEW_ID]),
    ):
        code, out, err = sbon(capsys, b, "keys", *arguments, "--json")
        assert (code, err) == (0, "")
        assert {node["node"]: node["ids"] for node in json.loads(out)["nodes"]} == {"a": after, "b": after}
    for name in "ab":
        path = tmp_path / f"{name}.key"
        assert KeyRing.parse(path.read_text()).ids == (NEW_ID,)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert a.ask("reload") == {"applied": [], "restart_needed": []}, "the file and the ring in force are the same"
    assert statuses(a) == statuses(b) == {"a": "alive", "b": "alive"}

    assert b.end() == 0
    again = start("b", "--join", address, "--key-file", str(tmp_path / "b.key")).wait_until_ready()
    wait_until(lambda: statuses(a) == statuses(again) == {"a": "alive", "b": "alive"})
    late = start("late", "--join", address, "--key-file", key_file(tmp_path, "late", OLD)).wait_until_ready()
    wait_until(lambda: late.ask("status")["problem"] is not None)
    code, out, _ = sbon(capsys, late, "status")
    assert "holds none of our cluster keys" in out
    (tmp_path / "late.key").write_text((tmp_path / "a.key").read_text())
    assert sbon(capsys, late, "reload")[0] == 0
    wait_until(lambda: statuses(late).get("a") == "alive")
    assert late.ask("status")["problem"] is None

    third = key_file(tmp_path, "third", b"t" * 32)
    wait_until(lambda: statuses(a).get("late") == "alive")
    code, out, _ = sbon(capsys, a, "keys", "install", third, "--except", "late")
    assert code == 0, "an omitted member is no failure"
    assert [line.split()[0] for line in out.splitlines() if "left out, as you asked" in line] == ["late:"]
    assert sbon(capsys, a, "keys", "install", third, "--except", "lat")[0] == 1
    assert KeyRing.parse((tmp_path / "late.key").read_text()).ids == (NEW_ID,)

    for process in (a, b, late):
        text = process.log.read_text()
        assert not any(generate_key(key) in text or repr(key) in text for key in (OLD, NEW))


def test_an_agent_that_cannot_save_a_key_is_named_and_the_exit_code_tells(start, tmp_path, capsys):
    a = start("a", "--key-file", key_file(tmp_path, "a", OLD)).wait_until_ready()
    (tmp_path / "a.key").write_text(generate_key(b"x" * 32))

    code, out, err = sbon(capsys, a, "keys", "install", key_file(tmp_path, "new", NEW))

    assert code == 1
    assert "changed by hand" in out
    assert err.splitlines() == ["sbon: not done on a, for the reason above; correct that, then run the same command again"]


def test_agents_without_a_key_say_so_in_one_line(start, tmp_path, capsys):
    a = start("a").wait_until_ready()

    code, out, err = sbon(capsys, a, "keys", "list")

    assert (code, out) == (1, "")
    assert err == "sbon: a runs without a cluster key; start every agent with --key-file\n"


def test_a_key_is_read_from_a_file_or_given_and_never_repeated(tmp_path, monkeypatch):
    text = generate_key(NEW)
    assert read_key(text) == NEW
    assert read_key(key_file(tmp_path, "new", NEW)) == NEW
    for wrong in (text[:-2] + "!=", text[:-8], text + "A" * 300, key_file(tmp_path, "two", OLD, NEW), str(tmp_path), os.devnull):
        with pytest.raises(ConfigError) as caught:
            read_key(wrong)
        assert text[:8] not in str(caught.value)
