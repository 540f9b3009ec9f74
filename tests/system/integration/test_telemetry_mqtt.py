"""Telemetry over a real broker: agents publish, a collector writes the same tables, and the broker may be away for a while."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import polars as pl
import pytest

from sbon.telemetry.rows import VERSION, Probe
from sbon_agent.telemetry.broker import Batch
from sbon_agent.telemetry.collect import Collection
from sbon_agent.telemetry.spool import Line
from tests.brokers import STARTED, Broker, certificates, end_all, needs_broker, passwords
from tests.processes import Process, wait_until

PASSWORD = "correct-horse"


@pytest.fixture(autouse=True)
def _ended():
    """Ends all processes, so that a failed test leaves none behind."""
    yield
    end_all()


@pytest.fixture
def broker(tmp_path):
    broker = Broker(tmp_path / "broker", "allow_anonymous true")
    broker.start()
    return broker


class Collector:
    def __init__(self, url: str, out: Path, *options: str) -> None:
        self.out = out
        self.said = out.with_name(out.name + ".err")
        command = [sys.executable, "-m", "sbon.cli", "collect", "--mqtt", url, "--out", str(out), "--interval", "0.3", "--json", *options]
        with self.said.open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        STARTED.append(self.process)
        wait_until(lambda: any(words in self.said.read_text() for words in ("connected to", "trying again")), timeout_s=120)

    def end(self) -> dict:
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, self.said.read_text()
        return json.loads(said)


def agent(tmp_path: Path, url: str, **telemetry: object) -> Process:
    settings = {"mqtt": url, "parquet": False, **telemetry}
    config = tmp_path / "agent.toml"
    config.write_text(
        "[telemetry]\n"
        + "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        + "[engine]\nsample_interval_s = 0.02\n"
    )
    process = Process(tmp_path, "a", "--bind", "127.0.0.1:0", "--config", str(config))
    STARTED.append(process.process)
    return process


def table(out: Path) -> pl.DataFrame:
    files = sorted(out.glob("kind=*/*/*/*.parquet"))
    columns = ["time", "agent", "start", "sequence"]
    return pl.concat([pl.read_parquet(path, columns=columns, hive_partitioning=False) for path in files]).sort("sequence")


def published(process: Process) -> int:
    return process.ask("status")["counters"]["mqtt_published"]


@needs_broker
def test_what_an_agent_records_arrives_once_though_the_broker_was_away(broker, tmp_path):
    url = f"mqtt://127.0.0.1:{broker.port}/plant/7"
    collector = Collector(url, tmp_path / "out")
    process = agent(tmp_path, url).wait_until_ready()
    wait_until(lambda: published(process) > 0)
    broker.stop()
    wait_until(lambda: process.ask("status")["counters"]["mqtt_connected"] == 0)
    recorded = process.ask("status")["counters"]["telemetry_records"]
    wait_until(lambda: process.ask("status")["counters"]["telemetry_records"] > recorded)  # the agent continues meanwhile
    broker.start()
    wait_until(lambda: published(process) > recorded)
    assert process.end() == 0
    wait_until(lambda: "stopped" in events(tmp_path / "out"))
    figures = collector.end()

    rows = table(tmp_path / "out")
    assert rows["sequence"].to_list() == list(range(1, figures["records"] + 1))
    assert (figures["missing"], figures["messages_refused"], figures["agents"]) == (0, 0, 1)
    assert rows["agent"].unique().to_list() == ["a"]


def events(out: Path) -> list[str]:
    return [event for path in sorted(out.glob("kind=agents/*/*/*.parquet")) for event in pl.read_parquet(path)["event"].to_list()]


@needs_broker
def test_the_broker_keeps_what_comes_while_the_collector_is_away(broker, tmp_path):
    url = f"mqtt://127.0.0.1:{broker.port}/plant"
    first = Collector(url, tmp_path / "out")
    process = agent(tmp_path, url).wait_until_ready()
    wait_until(lambda: published(process) > 0)
    wait_until(lambda: any((tmp_path / "out").glob("kind=*/*/*/*.parquet")))
    first.process.kill()  # killed: its received rows are in its spool
    first.process.wait()
    before = published(process)
    wait_until(lambda: published(process) > before)
    second = Collector(url, tmp_path / "out")
    assert process.end() == 0
    wait_until(lambda: "stopped" in events(tmp_path / "out"))
    second.end()

    sequences = table(tmp_path / "out")["sequence"].to_list()
    assert sequences == list(range(1, sequences[-1] + 1))


@needs_broker
def test_password_from_a_file_lets_in_and_is_never_logged(tmp_path):
    directory = tmp_path / "broker"
    users = passwords(tmp_path, "ams", PASSWORD)
    broker = Broker(directory, "allow_anonymous false", f"password_file {users}")
    broker.start()
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD + "\n")
    secret.chmod(0o600)
    url = f"mqtt://ams@127.0.0.1:{broker.port}/plant"
    process = agent(tmp_path, url, mqtt_password_file=str(secret)).wait_until_ready()
    wait_until(lambda: published(process) > 0)
    refused = Collector(url, tmp_path / "none")
    assert "trying again" in refused.said.read_text()
    refused.end()
    assert process.end() == 0

    assert PASSWORD not in process.log.read_text() + refused.said.read_text()


@needs_broker
def test_tls_is_checked_against_the_given_certificates(tmp_path):
    certificate, key = certificates(tmp_path)
    broker = Broker(tmp_path / "broker", "allow_anonymous true", f"certfile {certificate}", f"keyfile {key}")
    broker.start()
    url = f"mqtts://127.0.0.1:{broker.port}/plant"
    stranger = Collector(url, tmp_path / "none")  # the system's certificates do not know the broker's
    assert "certificate" in stranger.said.read_text().lower()
    stranger.end()
    collector = Collector(url, tmp_path / "out", "--ca-file", str(certificate))
    process = agent(tmp_path, url, mqtt_ca_file=str(certificate)).wait_until_ready()
    assert process.end() == 0
    wait_until(lambda: "stopped" in events(tmp_path / "out"))
    assert collector.end()["missing"] == 0


def message(start: str, sequences, agent: str = "a", version: int = VERSION) -> bytes:
    lines = [Line(1_795_233_600_000_000 + number, number, Probe("n", float(number), 1.0)) for number in sequences]
    return msgspec.msgpack.encode(Batch(version, agent, start, lines))


def test_repeated_batches_count_once_also_after_a_crash_of_the_collector(tmp_path):
    first = Collection(tmp_path)
    for sequences in (range(1, 5), range(1, 5), range(3, 8)):
        first.take(message("00c0ffee", sequences), "a")

    second = Collection(tmp_path)  # the first was killed
    second.take(message("00c0ffee", range(5, 10)), "a")
    second.take(message("0badcafe", range(1, 3)), "a")
    second.close_pieces()
    second.write()
    third = Collection(tmp_path)
    third.take(message("00c0ffee", range(9, 11)), "a")
    third.close_pieces()
    third.write()

    rows = table(tmp_path)
    by_run = {run: rows.filter(pl.col("start") == run)["sequence"].to_list() for run in ("00c0ffee", "0badcafe")}
    assert by_run == {"00c0ffee": list(range(1, 11)), "0badcafe": [1, 2]}
    assert (first.counters["repeated"], second.counters["repeated"], third.counters["repeated"]) == (6, 3, 1)


def test_nonsense_and_other_versions_are_counted_and_gaps_too(tmp_path):
    collection = Collection(tmp_path)
    for payload in (b"", b"\xff" * 100, msgspec.msgpack.encode([1, 2, 3]), message("../../etc", [1]), message("00c0ffee", [1], agent="b")):
        collection.take(payload, "a")
    collection.take(message("00c0ffee", [1], version=VERSION + 1), "a")
    collection.take(msgspec.msgpack.encode([VERSION + 1, "a", "1", "other rows"]), "a")
    collection.take(message("00c0ffee", [4, 5]), "a")

    counted = {name: count for name, count in collection.counters.items() if count}
    assert counted == {"messages": 8, "messages_refused": 5, "other_versions": 2, "missing": 3, "records": 2}
