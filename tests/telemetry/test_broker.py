"""The broker's address and access, and the publisher while the broker is away."""

import asyncio
from types import SimpleNamespace

import pytest

import sbon_agent.telemetry.mqtt
from sbon.cli.__main__ import run
from sbon.errors import ConfigError
from sbon.telemetry.rows import Probe
from sbon_agent.telemetry.broker import Access, Broker, access, client_options, parse_broker
from sbon_agent.telemetry.collect import written
from sbon_agent.telemetry.log import Telemetry, TelemetryConfig
from sbon_agent.telemetry.mqtt import BATCH_RECORDS_MAX, MqttPublisher
from tests.telemetry.test_telemetry import Bench


@pytest.mark.parametrize(
    ("url", "broker"),
    [
        ("mqtt://h/p", Broker("h", 1883, False, "", "p")),
        ("mqtts://ams%40x@h.example:99/plant/7/", Broker("h.example", 99, True, "ams@x", "plant/7")),
        ("mqtt://[::1]/p", Broker("::1", 1883, False, "", "p")),
    ],
)
def test_addresses_are_read(url, broker):
    assert parse_broker(url) == broker
    assert broker.user not in str(broker) or not broker.user


@pytest.mark.parametrize(
    "url", ["", "h", "http://h/p", "mqtt://h", "mqtt://h/", "mqtt://h/a+b", "mqtt://h/%23", "mqtt:///p", "mqtt://h:x/p", "mqtt://h/p?q=1"]
)
def test_other_addresses_are_refused(url):
    with pytest.raises(ConfigError, match="expected mqtt"):
        parse_broker(url)


def test_a_password_in_the_address_is_refused_without_showing_it():
    with pytest.raises(ConfigError) as refused:
        parse_broker("mqtt://ams:horse@h/p")

    assert "horse" not in str(refused.value)
    assert "SBON_MQTT_PASSWORD" in str(refused.value)


def test_the_configuration_refuses_a_wrong_address():
    with pytest.raises(ValueError, match="mqtt: 'amqp://h/p' is no broker's address"):
        TelemetryConfig(mqtt="amqp://h/p")


def test_the_password_comes_from_a_file_that_is_ours_alone_or_from_the_environment(tmp_path):
    file = tmp_path / "secret"
    file.write_text("horse\n")
    file.chmod(0o600)
    environment = {"SBON_MQTT_PASSWORD": "battery"}

    assert access(str(file), "", environment) == Access("horse", "")
    assert access("", "", environment).password == "battery"
    assert access("", "", {}).password is None
    assert "horse" not in repr(access(str(file), "")) + str(access(str(file), ""))

    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        access(str(file), "")
    with pytest.raises(ConfigError, match="cannot read the broker's password file"):
        access(str(tmp_path / "none"), "")
    with pytest.raises(ConfigError, match="no certificates' file"):
        access("", str(tmp_path / "none"), {})


def test_a_file_without_certificates_is_refused(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")

    with pytest.raises(ConfigError, match="holds no certificates"):
        client_options(parse_broker("mqtts://h/p"), Access(None, str(tmp_path / "ca.pem")))


async def test_the_newest_rows_are_kept_while_the_broker_is_away(tmp_path, monkeypatch):
    monkeypatch.setattr(sbon_agent.telemetry.mqtt, "FINISH_S_MAX", 0.2)
    telemetry = Telemetry(TelemetryConfig(mqtt="mqtt://127.0.0.1:1/p", mqtt_buffer_records_max=700), None, Bench(), "a")
    telemetry.begin("00c0ffee")
    publisher = MqttPublisher(telemetry, parse_broker(telemetry.config.mqtt), Access(None, ""))

    for number in range(1000):
        telemetry.record(Probe("n", float(number), 1.0))
    publisher.begin()
    while not publisher.counters["mqtt_disconnects"]:
        await asyncio.sleep(0)

    assert publisher.counters["mqtt_dropped"] == 300
    assert len(publisher._batch()) == BATCH_RECORDS_MAX
    publisher.hurry()
    await publisher.finish()
    assert publisher.counters["mqtt_dropped"] == 1000  # all are dropped and counted
    assert publisher.counters["mqtt_published"] == 0


@pytest.mark.parametrize("interrupts", [1, 2])
async def test_an_interrupt_while_tables_are_written_ends_the_collection_with_all_of_them_written(interrupts):
    ending, calls = asyncio.Event(), []

    def write():
        calls.append(1)
        if len(calls) <= interrupts:
            raise KeyboardInterrupt  # polars raises this on the thread that called it

    collection = SimpleNamespace(write=write)
    if interrupts == 1:
        await written(collection, ending)
    else:
        with pytest.raises(KeyboardInterrupt):
            await written(collection, ending)

    assert ending.is_set()
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--mqtt", "http://h/p", "--out", "x"], 2, "is no broker's address"),
        (["--mqtt", "mqtt://127.0.0.1:1/p", "--out", "x", "--interval", "0"], 2, "expected 0.1 to 86400"),
        (["--mqtt", "mqtt://u@127.0.0.1:1/p", "--out", "x", "--password-file", "none"], 2, "cannot read the broker's password file none"),
        (["--mqtt", "mqtt://127.0.0.1:1/p", "--out", "/dev/null/x"], 1, "cannot write below /dev/null/x"),
    ],
)
def test_collect_says_in_one_line_what_is_wrong(options, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert run(["collect", *options]) == code

    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert said in errors[0]
