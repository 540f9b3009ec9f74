"""Scenarios: TOML files that describe an overlay, the statements submitted to it, and the events that happen to it.

    name = "two oceans"
    duration_s = 120
    nodes = 16

    [topology]
    kind = "cities"

    [agent.membership]            # settings of every agent
    interval_s = 0.5

    [[override]]                  # settings and labels of some
    agents = "region=eu"
    labels = { tier = "core" }

    [[statement]]
    at_s = 20
    agent = "london"
    sql = "SELECT ..."

    [[event]]
    at_s = 60
    kind = "latency"
    cable = "atlantic"
    factor = 2

A selector chooses agents: a name, `label=value`, `#number` or `*` (`Topology.select`). Times are seconds since the start.
"""

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin

import msgspec

from sbon.errors import ConfigError, UsageError
from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.topology import CitiesConfig, TopologyConfig


class Statement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SQL that is submitted to one agent. The rows of a plain SELECT are collected, and compared with `[expect]`."""

    at_s: float
    """Time of the submission."""
    agent: str = "#0"
    """Selector of the agent that is asked; of several, the first."""
    sql: str
    """One or more statements."""
    name: str = ""
    """Name in results and expectations; empty: its number among the statements, from 1."""


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings and labels of some agents, which take precedence over those of all agents."""

    agents: str
    """Selector of the agents."""
    agent: dict[str, Any] = {}
    """Settings, as in an agent's own TOML file."""
    labels: dict[str, str] = {}
    """Labels, added to those that the topology gives."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    at_s: float
    """Time of the event."""


class Latency(_Event, frozen=True, kw_only=True, tag="latency"):
    """Paths become `factor` times as long as they were at the start: those of a cable, or those between two selections."""

    factor: float
    """Above 0, at most 1000; 1 restores the paths."""
    cable: str = ""
    """Name of a cable of the topology."""
    between: tuple[str, str] | None = None
    """Two selectors: paths between the agents of one and those of the other."""

    def __post_init__(self) -> None:
        if bool(self.cable) == (self.between is not None):
            raise ValueError("a latency event names either a cable or two selections (between = [a, b])")
        if not 0 < self.factor <= 1000:
            raise ValueError(f"factor = {self.factor}, expected above 0, at most 1000")


class Load(_Event, frozen=True, kw_only=True, tag="load"):
    """Other programs take this share of the CPU of these agents' machines."""

    agents: str
    """Selector of the agents."""
    fraction: float
    """Share of the CPU, 0 to 0.99."""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 0.99:
            raise ValueError(f"fraction = {self.fraction}, expected 0 to 0.99")


class Kill(_Event, frozen=True, kw_only=True, tag="kill"):
    """Processes die as if by SIGKILL."""

    agents: str
    """Selector of the agents."""
    silent: bool = False
    """Turns the machines off, too, so that nothing resets their connections."""


class Restart(_Event, frozen=True, kw_only=True, tag="restart"):
    """Processes start again (running ones are killed first) with their old data directory, unless `lose_data` deletes it."""

    agents: str
    """Selector of the agents."""
    lose_data: bool = False
    """Deletes the data directories first."""


class Leave(_Event, frozen=True, kw_only=True, tag="leave"):
    """Agents leave gracefully and end."""

    agents: str
    """Selector of the agents."""


class Partition(_Event, frozen=True, kw_only=True, tag="partition"):
    """The network splits into these groups of selections; all other agents form one more group."""

    groups: tuple[tuple[str, ...], ...]
    """Groups, each a list of selectors."""


class Heal(_Event, frozen=True, kw_only=True, tag="heal"):
    """Every partition ends."""


class Migrate(_Event, frozen=True, kw_only=True, tag="migrate"):
    """The movable operators of a statement's query are told to move, one after another. An abandoned migration is no error."""

    statement: str
    """Name of the statement."""
    to: str
    """Selector of the agent to move to; of several, the first."""


ScenarioEvent: TypeAlias = Latency | Load | Kill | Restart | Leave | Partition | Heal | Migrate


class Expectations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions that must hold at the end; otherwise the run ends with exit code 1."""

    coordinate_error_median_max: float | None = None
    """Median relative error of the RTTs that coordinates predict, over pairs of living agents."""
    members_agree: bool = False
    """Every living agent sees exactly the living agents alive."""
    migrations_min: int | None = None
    """Least number of moves of operators."""
    rows_min: dict[str, int] = {}
    """Least rows collected, by statement name."""
    rows: dict[str, int] = {}
    """Rows collected, neither less nor more, by statement name."""
    sums: dict[str, dict[str, int]] = {}
    """Sums of whole numbers over the rows collected, by statement name and column; with `rows` they show that each row came once."""
    states: dict[str, str] = {}
    """State of a query at the end, by statement name."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole run."""

    name: str
    """Name of the scenario, repeated in results."""
    description: str = ""
    """Purpose of the scenario, for readers of the file."""
    seed: int = 1
    """Seed of the run, unless the command line gives one."""
    duration_s: float
    """Length of the run."""
    nodes: int
    """Number of agents, one for each node of the topology."""
    start_spread_s: float = 2.0
    """Agents start one after another within this time; all but the first join through the first."""
    topology: TopologyConfig = CitiesConfig()
    """The nodes, and the round trips between them."""
    network: NetworkConfig = NetworkConfig()
    """Faults of the network beyond its latencies."""
    cpu: CpuConfig = CpuConfig()
    """The virtual cost of work; backend `sim` alone."""
    agent: dict[str, Any] = {}
    """Settings of every agent, as in its own TOML file."""
    override: tuple[Override, ...] = ()
    """Settings and labels of some agents."""
    statement: tuple[Statement, ...] = ()
    """Statements, and when they are submitted."""
    event: tuple[ScenarioEvent, ...] = ()
    """Events in the overlay, with their times."""
    expect: Expectations = Expectations()
    """Conditions that must hold at the end."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.duration_s <= 0 or self.start_spread_s < 0:
            raise ValueError("nodes must be 1 or more, duration_s above 0, start_spread_s 0 or more")
        for item in (*self.statement, *self.event):
            if not 0 <= item.at_s <= self.duration_s:
                raise ValueError(f"at_s = {item.at_s:g}, expected 0 to duration_s = {self.duration_s:g}")
        names = [statement_name(self, number) for number in range(len(self.statement))]
        if len(set(names)) < len(names):
            raise ValueError(f"two statements are named {next(name for name in names if names.count(name) > 1)}")
        for name in (*self.expect.rows_min, *self.expect.rows, *self.expect.sums, *self.expect.states):
            if name not in names:
                raise ValueError(f"expect names the statement {name}; there are {', '.join(names) or 'none'}")
        for event in self.event:
            if isinstance(event, Migrate) and event.statement not in names:
                raise ValueError(f"a migrate event names the statement {event.statement}; there are {', '.join(names) or 'none'}")


def statement_name(scenario: Scenario, number: int) -> str:
    """Returns the name of statement `number` (from 0)."""
    return scenario.statement[number].name or str(number + 1)


SHIPPED = Path(__file__).parent / "scenarios"
"""Folder of the scenarios that come with the testbed."""


def read_scenario(path: Path) -> Scenario:
    """Loads a scenario file.

    Raises
    ------
    ConfigError
        The file cannot be read.
    UsageError
        The file is not TOML or no valid scenario; the message gives the place.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "not UTF-8 text"
        shipped = ", ".join(sorted(str(file) for file in SHIPPED.glob("*.toml")))
        hint = f"; there is {shipped}" if isinstance(problem, FileNotFoundError) and shipped else ""
        raise ConfigError(f"cannot read the scenario {path}: {reason}{hint}") from problem
    return parse_scenario(text, str(path))


def parse_scenario(text: str, origin: str) -> Scenario:
    """Parses the scenario in a TOML text; `origin` names it in messages. Raises the errors of `read_scenario`."""
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise UsageError(f"{origin}: not TOML: {problem}") from problem
    try:
        return msgspec.convert(settings, Scenario)
    except msgspec.ValidationError as problem:
        raise UsageError(f"{origin}: {_sentence(str(problem))}") from problem


def _sentence(message: str) -> str:
    """Returns msgspec's error with the place first, and the name that may have been meant."""
    found = re.search(r" - at `\$\.?(?P<path>[^`]*)`$", message)
    path, text = (found["path"], message[: found.start()]) if found else ("", message)
    text = text[:1].lower() + text[1:]
    unknown = re.search(r"unknown field `(?P<name>[^`]*)`", text)
    if unknown:
        text += _nearest_field(unknown["name"], path)
    wrong = re.search(r"invalid (?:enum )?value '(?P<value>[^']*)'", text)
    if wrong and (known := _alternatives(path)):
        near = difflib.get_close_matches(wrong["value"], known, n=1)
        text += (f"; did you mean {near[0]}? there is " if near else ", expected one of ") + ", ".join(known)
    return f"{_place(path)}: {text}" if path else text


def _nearest_field(name: str, path: str) -> str:
    """Suggests a name for a field that the table at `path` does not have: a field of that table or of the scenario itself."""
    own = sorted({field.encode_name for kind in _found(path) for field in _fields(kind)})
    if path and name in Scenario.__struct_fields__:
        return f"; {name} stands before the first table"
    if near := difflib.get_close_matches(name, own, n=1):
        return f"; did you mean {near[0]}?"
    return f"; there is {', '.join(own)}" if own else ""


def _alternatives(path: str) -> list[str]:
    """Returns the allowed words of a setting, sorted: tags of the structs allowed for a table, or the words of a Literal."""
    return sorted({value for value in _found(path) if isinstance(value, str)})


def _found(path: str) -> list[Any]:
    """Returns the structs and words allowed at a place of a scenario."""
    found: list[Any] = [Scenario]
    for name in re.findall(r"[^.\[\]]+", re.sub(r"\[\d+\]", "", path)):
        tags = [
            kind.__struct_config__.tag
            for kind in found
            if getattr(kind, "__struct_config__", None) and kind.__struct_config__.tag_field == name
        ]
        fields = [field for kind in found for field in _fields(kind)]
        found = tags + [part for field in fields if field.encode_name == name for part in _parts(field.type)]
    return found


def _fields(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind) if hasattr(kind, "__struct_fields__") else ()


def _parts(annotation: Any) -> list[Any]:
    """Returns the structs and words that an annotation is made of."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [part for one in get_args(annotation) for part in _parts(one)] or [annotation]


def _place(path: str) -> str:
    """Returns a path such as `statement[2].at_s`, counted from 1 for people."""
    return re.sub(r"\[(\d+)\]", lambda number: f" {int(number[1]) + 1}", path)
