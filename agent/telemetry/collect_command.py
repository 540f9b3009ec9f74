"""The `sbon collect` command."""

import asyncio
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command to the program; called through the entry point group `sbon.commands`."""
    app.command()(collect)


def collect(
    mqtt: Annotated[str, typer.Option(metavar="URL", help="mqtt://[USER@]HOST[:PORT]/PREFIX, or mqtts:// for TLS.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the tables, which are as agents write them.")],
    password_file: Annotated[
        str, typer.Option(metavar="FILE", help="Password file of USER; default: variable SBON_MQTT_PASSWORD.", show_default=False)
    ] = "",
    ca_file: Annotated[str, typer.Option(metavar="FILE", help="Trusted certificates; default: the system's.", show_default=False)] = "",
    interval: Annotated[float, typer.Option(metavar="S", help="Seconds between writes of Parquet files.")] = 60.0,
    client: Annotated[
        str, typer.Option(metavar="NAME", help="Name under which the broker keeps messages between runs.", show_default=False)
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the figures at the end as JSON.")] = False,
) -> None:
    """Collect the telemetry that agents publish, until Ctrl-C.

    Agents publish with `[telemetry] mqtt = "mqtt://HOST/PREFIX"` in their configuration. `sbon analyze DIR` reads the tables.

    \b
    Examples:
      sbon collect --mqtt mqtt://broker.example/plant --out telemetry
      sbon collect --mqtt mqtts://reader@broker.example/plant --password-file secret --out telemetry
    """
    from sbon.errors import ConfigError
    from sbon_agent.telemetry.broker import access, parse_broker

    try:
        broker, let_in = parse_broker(mqtt), access(password_file, ca_file)
    except ConfigError as problem:
        raise typer.BadParameter(str(problem)) from None
    if not 0.1 <= interval <= 86_400:
        raise typer.BadParameter(f"--interval {interval:g}, expected 0.1 to 86400 seconds")
    import sbon_agent.telemetry.collect as work
    from sbon.cli.output import print_json, say

    async def run() -> work.Collection:
        ending = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ending.set)
        name = client or f"sbon-collect-{socket.gethostname()}"
        return await work.collect(broker, let_in, out, interval, name, ending, _say)

    collection = asyncio.run(run())
    figures = {**collection.counters, "agents": len(collection.agents), "out": str(out)}
    if json:
        print_json(figures)
    else:
        counted = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in collection.counters.items())
        say(f"{counted}, of {len(collection.agents)} agents, in {out}")


def _say(what: str) -> None:
    from sbon.cli.output import say

    say(what, error=True)
