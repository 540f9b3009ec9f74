"""All settings of an agent. Each section's struct is beside the code that it tunes; this module puts them together and reads the file."""

import re
from pathlib import Path

import msgspec

from sbon.addresses import parse_address
from sbon.config import Layer, load
from sbon.control import DEFAULT_DATA_DIR
from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.load import LoadConfig
from sbon.errors import ConfigError
from sbon.execution.settings import EngineConfig
from sbon.links.config import LinkConfig
from sbon.membership.config import MembershipConfig, check_labels
from sbon.migration.config import MigrationConfig
from sbon.optimiser.config import OptimiserConfig
from sbon.peer_settings import PeerConfig
from sbon.placement.config import PlacementConfig
from sbon.placement.reservations import HostingConfig
from sbon.reach import ConnectorsConfig
from sbon.types import AGENT_NAME
from sbon_agent.control import ControlConfig
from sbon_agent.logs import LogConfig
from sbon_agent.telemetry.log import TelemetryConfig

LEAVING_S_MAX = 3600.0

LABEL_KEY = re.compile(r"[A-Za-z0-9_.-]{1,32}")

LOOPBACK = ("localhost", "::1")


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent of an sbon overlay."""

    name: str = ""
    """Name of the agent, unique in the overlay: at most 64 of A-Z a-z 0-9 _ . : -; empty takes the host name. Two agents with the same name
    conflict."""
    bind: str = "127.0.0.1:7946"
    """HOST:PORT to listen on, for UDP and TCP; port 0 takes a free one. An address beyond loopback needs a key file."""
    advertise: str = ""
    """HOST:PORT under which others reach this agent; empty takes the address bound to. Needed behind NAT or with a bind to 0.0.0.0."""
    join: tuple[str, ...] = ()
    """HOST:PORT of agents already in the overlay; one that answers is enough, more make the start more reliable."""
    data_dir: str = DEFAULT_DATA_DIR
    """Folder for coordinate, incarnation, statements, control socket and telemetry; one agent per folder."""
    key_file: str = ""
    """File with cluster keys as `sbon keygen` prints them, one per line: the first encrypts, all decrypt. Empty: no encryption, loopback
    only."""
    initial_key_file: str = ""
    """File with the initial keys. The agent copies it to key_file if that does not exist yet; otherwise it does not read this file. Meant
    for secrets that a service manager provides in read-only files: `sbon keys` changes key_file, and the change survives a restart."""
    leaving_s: float = 20.0
    """Longest time for moving operators to other hosts before a leaving agent says goodbye. Longer: larger states can be moved in time.
    Shorter: a quicker end; operators that have not moved by then are lost with the agent. 0: it leaves at once. The supervisor must wait
    longer than this and leave_timeout_s together before it kills the agent."""
    leave_timeout_s: float = 5.0
    """Longest time for saying goodbye to the overlay, after leaving_s. Shorter: others may take the departure for a failure."""
    labels: dict[str, str] = {}
    """Labels of this machine, for sources chosen by label, as in { region = "eu", site = "ams1" }; they are spread by gossip."""
    log: LogConfig = LogConfig()
    control: ControlConfig = ControlConfig()
    membership: MembershipConfig = MembershipConfig()
    peers: PeerConfig = PeerConfig()
    coordinate: CoordinateConfig = CoordinateConfig()
    load: LoadConfig = LoadConfig()
    placement: PlacementConfig = PlacementConfig()
    hosting: HostingConfig = HostingConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    engine: EngineConfig = EngineConfig()
    connectors: ConnectorsConfig = ConnectorsConfig()
    links: LinkConfig = LinkConfig()
    migration: MigrationConfig = MigrationConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    def __post_init__(self) -> None:
        if self.name and not AGENT_NAME.fullmatch(self.name):
            raise ValueError(f"name = {self.name!r}, expected at most 64 of A-Z a-z 0-9 _ . : -")
        for setting, text in (("bind", self.bind), ("advertise", self.advertise), *(("join", seed) for seed in self.join)):
            if text or setting != "advertise":
                _checked_address(setting, text)
        if not 0 <= self.leaving_s <= LEAVING_S_MAX:
            raise ValueError(f"leaving_s = {self.leaving_s}, expected 0 to {LEAVING_S_MAX:g}")
        if not 0 <= self.leave_timeout_s <= 300:
            raise ValueError(f"leave_timeout_s = {self.leave_timeout_s}, expected 0 to 300")
        for key in self.labels:
            if not LABEL_KEY.fullmatch(key):
                raise ValueError(f"labels has the key {key!r}, expected at most 32 of A-Z a-z 0-9 _ . -")
        try:
            check_labels(self.labels)
        except ConfigError as problem:
            raise ValueError(str(problem)) from problem


def is_loopback(host: str) -> bool:
    """Tells whether `host` is a loopback address, which only this machine can reach."""
    return host in LOOPBACK or re.fullmatch(r"127\.\d+\.\d+\.\d+", host) is not None


def read_config(path: str | None, flags: Layer) -> AgentConfig:
    """Reads the configuration from a file (or the defaults); `flags` override it.

    Raises
    ------
    ConfigError
        The file cannot be read, or a setting is wrong.
    """
    text = ""
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "not UTF-8 text"
            raise ConfigError(f"cannot read the configuration file {path}: {reason}") from problem
    return load(AgentConfig, text, path or "defaults", flags)


def _checked_address(setting: str, text: str) -> None:
    try:
        parse_address(text)
    except ConfigError as problem:
        raise ValueError(f"{setting}: {problem}") from problem
