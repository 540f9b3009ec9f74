"""What all worlds offer to whoever drives them: the virtual one (`sbon_testbed.virtual.harness`) and those of processes
(`sbon_testbed.processes.local`, `sbon_testbed.netns`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from sbon.types import NodeId
from sbon_testbed.topology import Latencies, PairMask, Topology

Node: TypeAlias = int | NodeId
"""A node by its number or its name."""


@dataclass
class Tail:
    """The rows of one query, growing while time passes."""

    query: str
    columns: tuple[str, ...] = ()
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    finished: bool = False
    """No further row will come: the query has ended, or the agent has gone."""
    error: str = ""

    def take(self, result: Any) -> None:
        """One reply to the control request `tail`."""
        if isinstance(result, dict) and "rows" in result:
            self.columns = tuple(result.get("columns", self.columns))
            self.rows += [tuple(row) for row in result["rows"]]


class Backend(Protocol):
    """A world of agents."""

    topology: Topology
    latencies: Latencies

    @property
    def now(self) -> float:
        """Seconds since the world began."""

    def start(self, node: Node) -> None:
        """Start the agent of a node that has none running."""

    def alive(self, node: Node) -> bool:
        """Whether the node's agent runs."""

    def kill(self, node: Node, *, silent: bool = False) -> None:
        """End the process as SIGKILL does; `silent`: its machine goes off as well."""

    def restart(self, node: Node, *, lose_data: bool = False) -> None:
        """Kill it if it runs, then start it again."""

    def leave(self, node: Node) -> None:
        """Let the agent leave gracefully and end."""

    def scale(self, pairs: PairMask, factor: float) -> None:
        """Make the paths of these pairs `factor` times as long as at first."""

    def partition(self, groups: Sequence[Iterable[int]]) -> None:
        """Split the network."""

    def heal(self) -> None:
        """End every partition."""

    def load(self, node: Node, fraction: float) -> None:
        """Let other programs take this share of the machine's CPU."""

    def run(self, seconds: float) -> None:
        """Let time pass."""

    def ask(self, node: Node, command: str, /, **arguments: Any) -> Any:
        """The result of a control request; SbonError where the agent refuses, is gone, or does not answer."""

    def tail(self, query: str, node: Node) -> Tail:
        """Collect the rows of a query from now on."""

    def counters(self) -> dict[str, int]:
        """What the world itself has counted."""

    def close(self) -> None:
        """End everything and leave nothing behind."""


def node_number(topology: Topology, node: Node) -> int:
    """The number of a node given either way; ConfigError where there is none."""
    return node if isinstance(node, int) else topology.index(node)
