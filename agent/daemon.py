"""Runs the daemon: owns the data directory, starts the agent, serves the control socket, handles signals, and leaves the overlay in good
order.

    starting --agent listens, socket open--> running --SIGTERM, SIGINT, `sbon leave`--> leaving --said goodbye, or time is up--> ended
        leaving (`Agent.leave`): the agent's operators move to other hosts, then it says goodbye
    running --SIGHUP, `sbon reload`--> running, with the settings that can be changed
A second SIGTERM or SIGINT while leaving ends at once.
"""

import asyncio
import ctypes
import gc
import os
import re
import signal
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sbon.addresses import format_address, parse_address
from sbon.control import ControlReply, ControlRequest, refusal
from sbon.cost.store import OperatorsTime
from sbon.errors import ConfigError, SbonError
from sbon.sealing import KeyRing
from sbon.types import AGENT_NAME
from sbon_agent import logs
from sbon_agent.config import AgentConfig, is_loopback
from sbon_agent.control import Cancel, ControlServer, DataDirectory, Reply
from sbon_agent.kept_file import KeptFile
from sbon_agent.key_file import copy_key_file
from sbon_agent.logs import structlog
from sbon_agent.loop_lag import LoopLag
from sbon_agent.service_manager import ServiceManager
from sbon_agent.telemetry.broker import access

if TYPE_CHECKING:
    from sbon_agent.network.shaper import ShapedHost
    from sbon_agent.node import Agent

log = structlog.get_logger("daemon")

EVERYWHERE = ("0.0.0.0", "::")

SWITCH_S = 0.0005
"""Seconds after which an executor thread releases the interpreter's lock when the event loop wants it. Python's default is 5 ms."""
DRAIN_S_MAX = 2.0
"""Longest wait, in seconds, for closing connections to send the goodbyes."""

ReadConfig = Callable[[], AgentConfig]


def run(config: AgentConfig, read_again: ReadConfig, shaper_file: str | None = None, *, forget: bool = False) -> int:
    """Runs an agent until it is told to leave; returns the exit code.

    Parameters
    ----------
    read_again : reads the configuration again, for a reload
    shaper_file : the testbed's table of delays; None outside the testbed
    forget : whether to start without the saved statements

    Raises
    ------
    ConfigError
        The agent cannot start as configured.
    """
    config = resolved(config)
    logs.set_up(config.log, node=config.name)
    if config.initial_key_file:
        copy_key_file(Path(config.initial_key_file), Path(config.key_file))
    key_ring = read_key_ring(config)
    if config.telemetry.mqtt:
        access(config.telemetry.mqtt_password_file, config.telemetry.mqtt_ca_file)  # wrong files are reported before anything starts
    directory = DataDirectory(Path(config.data_dir))
    if forget:
        KeptFile(directory.path).forget()
    from sbon_agent.asyncio_host import new_event_loop

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_live(config, read_again, key_ring, directory, shaper_file))
    finally:
        directory.close()


def resolved(config: AgentConfig) -> AgentConfig:
    """Returns the configuration with the host's name and the user's home filled in.

    Raises
    ------
    ConfigError
        The user must give a usable name, a data directory, an address under which others reach this agent, or a key file.
    """
    host, port = parse_address(config.bind)
    if host in EVERYWHERE and not config.advertise:
        raise ConfigError(
            f"bind = {config.bind} listens on every address, so others cannot be told where to reach this agent: "
            f"give one of its addresses with --advertise HOST:{port}"
        )
    if not config.data_dir:
        raise ConfigError("data_dir is empty; name a directory for state and control socket with --data-dir")
    name = config.name or re.sub(r"[^A-Za-z0-9_.:-]", "-", socket.gethostname())
    if not AGENT_NAME.fullmatch(name):
        raise ConfigError(f"the host name {name!r} is no valid name of an agent; give one with --name")
    data_dir = str(Path(config.data_dir).expanduser().absolute())
    if config.initial_key_file and not config.key_file:
        raise ConfigError("initial_key_file is given without key_file; name the file to which the keys are copied with --key-file")
    key_file, initial = (str(Path(file).expanduser().absolute()) if file else "" for file in (config.key_file, config.initial_key_file))
    return msgspec.structs.replace(config, name=name, data_dir=data_dir, key_file=key_file, initial_key_file=initial)


def read_key_ring(config: AgentConfig) -> KeyRing | None:
    """Reads the cluster's keys; returns None without a key file, which is allowed on loopback only.

    Raises
    ------
    ConfigError
        There is no key for an address beyond loopback, or the file is unreadable.
    """
    if not config.key_file:
        for setting, text in (("bind", config.bind), ("advertise", config.advertise)):
            if text and not is_loopback(parse_address(text)[0]):
                raise ConfigError(
                    f"{setting} = {text} can be reached from other machines, but there is no cluster key: make one with "
                    "`sbon keygen --out cluster.key` and give it with --key-file, or bind to 127.0.0.1"
                )
        return None
    path = Path(config.key_file)
    try:
        text = path.read_text(encoding="ascii")
        mode = path.stat().st_mode
    except OSError as problem:
        raise ConfigError(f"cannot read the key file {path}: {problem.strerror}") from problem
    except UnicodeDecodeError:
        raise ConfigError(f"the key file {path} holds no keys as `sbon keygen` makes them") from None
    if stat.S_IMODE(mode) & 0o077:
        log.warning("key_file.readable_by_others", path=str(path), mode=f"{stat.S_IMODE(mode):04o}", advice=f"chmod 600 {path}")
    return KeyRing.parse(text)


class Daemon:
    """Answers the control socket: passes requests to the agent, and carries out those that concern the process.

    Parameters
    ----------
    agent : the running agent
    read_again : reads the configuration again
    manager : told of reloads and of the end
    shaped : the host that adds the testbed's delays, if there is one
    """

    def __init__(self, agent: "Agent", read_again: ReadConfig, manager: ServiceManager, shaped: "ShapedHost | None" = None) -> None:
        self._agent = agent
        self._read_again = read_again
        self._manager = manager
        self._shaped = shaped
        self.loop_lag: LoopLag | None = None
        """Measures how late the event loop is; None if it is not measured."""
        self.processor_s: Callable[[], dict[str, float]] | None = None
        """Returns the processor time of this process by kind of thread; None if it is not measured."""
        self.counters: list[Mapping[str, int]] = []
        """Counters of the parts around the agent; `status` shows them among the agent's own."""
        self.ended = asyncio.Event()
        agent.shutdown.when_leaving(manager.stopping)
        agent.shutdown.when_left(self.ended.set)

    def control(self, request: ControlRequest, reply: Reply) -> Cancel:
        """Answers a request; see `sbon.control`."""
        if request.command == "reload":
            try:
                reply(ControlReply(request.id, final=True, result=self.reload()))
            except SbonError as problem:
                reply(refusal(request.id, problem))
        elif request.command == "shape" and self._shaped is not None:
            try:
                self._shaped.update(request.arguments)
                reply(ControlReply(request.id, final=True, result={}))
            except SbonError as problem:
                reply(refusal(request.id, problem))
        elif request.command == "status":
            self._agent.control(request, lambda answer: reply(self._of_the_process(answer)))
        else:
            return self._agent.control(request, reply)
        return _nothing

    def _of_the_process(self, answer: ControlReply) -> ControlReply:
        if not isinstance(answer.result, dict):
            return answer
        counters = dict(answer.result.get("counters", {}))
        for further in self.counters:
            counters.update(further)
        lag = self.loop_lag.told() if self.loop_lag is not None else None
        spent = processor_times(self.processor_s(), self._agent.execution.cost_store.processors) if self.processor_s is not None else None
        return msgspec.structs.replace(answer, result={**answer.result, "loop_lag": lag, "processor_s": spent, "counters": counters})

    def leave(self) -> None:
        """Handles SIGTERM or SIGINT: leaves within `leaving_s`; a second signal ends the agent at once."""
        self._agent.leave(_nothing)

    def reload(self) -> dict[str, list[str]]:
        """Reads the configuration again, applies the settings that can be changed, and returns the names of those and of others that need a
        restart.

        Raises
        ------
        ConfigError
            The new configuration is wrong; the old one stays in force.
        """
        self._manager.reloading()
        try:
            told = self._reload()
        except SbonError as problem:
            self._manager.ready(f"going on with the old configuration: {problem}")
            raise
        waiting = f"; only after a restart: {', '.join(told['restart_needed'])}" if told["restart_needed"] else ""
        self._manager.ready(f"configuration read again, applied: {', '.join(told['applied']) or 'nothing has changed'}{waiting}")
        return told

    def _reload(self) -> dict[str, list[str]]:
        fresh = resolved(self._read_again())
        key_ring = read_key_ring(fresh)
        change = self._agent.reload(fresh)
        applied = list(change.applied)
        if change.changes("log"):
            logs.set_up(change.config.log, node=change.config.name)
        in_force = self._agent.key_ring  # `sbon keys` may have changed it since the last reload
        if key_ring is not None and in_force is not None and key_ring.ids != in_force.ids:
            self._agent.use_keys(key_ring)
            if "key_file" not in applied:
                applied.append("key_file")
        log.info("config.reloaded", applied=applied, restart_needed=change.waiting)
        return {"applied": applied, "restart_needed": list(change.waiting)}

    def hang_up(self) -> None:
        """Handles SIGHUP: reloads, and keeps the old configuration if that fails."""
        try:
            self.reload()
        except ConfigError as problem:
            log.error("config.refused", reason=str(problem), doing="going on with the old configuration")


def processor_times(threads_s: Mapping[str, float], operators: OperatorsTime) -> dict[str, float]:
    """Returns the processor seconds of the process, by purpose.

    `operators` is the time charged to operators; `event_loop` and `threads` are the further time of these threads; `other` is the rest.
    """
    operators_s, on_loop_s = operators.operators_ns / 1e9, operators.on_loop_ns / 1e9
    workers_s = threads_s["operator_threads"] + threads_s["polars_threads"]
    return {
        "process": threads_s["process"],
        "operators": operators_s,
        "event_loop": threads_s["event_loop_thread"] - on_loop_s,
        "threads": workers_s - (operators_s - on_loop_s),
        "other": threads_s["process"] - threads_s["event_loop_thread"] - workers_s,
    }


async def _live(
    config: AgentConfig, read_again: ReadConfig, key_ring: KeyRing | None, directory: DataDirectory, shaper_file: str | None
) -> int:
    from sbon_agent.asyncio_host import AsyncioHost
    from sbon_agent.node import Agent
    from sbon_agent.telemetry.carriers import TelemetryCarriers

    loop = asyncio.get_running_loop()
    sys.setswitchinterval(SWITCH_S)
    host = AsyncioHost(loop, workers=config.engine.workers)
    shaped = None
    if shaper_file is not None:
        from sbon_agent.network.shaper import shaped_by

        shaped = shaped_by(host, shaper_file)
    agent = Agent(config, shaped or host, key_ring)
    carriers = TelemetryCarriers(agent.monitoring.telemetry)
    address = agent.start()
    carriers.begin()
    manager = ServiceManager(os.environ, loop)
    daemon = Daemon(agent, read_again, manager, shaped)
    daemon.processor_s = host.processor_s
    loop_lag = daemon.loop_lag = LoopLag(loop, tell=agent.execution.cost_store.waits.late)
    server = ControlServer(directory.path, daemon, config.control, directory.hold)
    daemon.counters += [host.counters, server.counters, logs.standard_error.counters, *([shaped.counters] if shaped is not None else [])]
    daemon.counters += carriers.counters
    try:
        await server.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, daemon.leave)
        loop.add_signal_handler(signal.SIGHUP, daemon.hang_up)
        loop_lag.start()
        agent.monitoring.measuring.loop_lag = loop_lag.told
        _give_back_memory()
        log.info("daemon.ready", address=format_address(address), socket=str(server.path), process=os.getpid())
        manager.ready(f"{config.name} at {format_address(address)}; sbon status --socket {server.path}")
        await daemon.ended.wait()
    finally:
        loop_lag.stop()
        await server.close()
        agent.stop()
        await host.drain(DRAIN_S_MAX)
        host.close()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, carriers.hurry)
        await carriers.finish()
        manager.close()
    return 0


def _give_back_memory() -> None:
    """Returns memory that only the start needed, and excludes the remaining objects from garbage collections."""
    gc.collect()
    gc.freeze()
    gc.enable()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc only
    if trim is not None:
        trim(0)


def _nothing() -> None:
    """Does nothing: there is nothing to cancel."""
