"""The interface of all worlds to their drivers: the virtual world (`sbon_testbed.simulator.harness`) and the worlds of processes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from sbon.types import NodeId
from sbon_testbed.topology import Latencies, PairMask, Topology

Node: TypeAlias = int | NodeId
"""A node by its number or its name."""


@dataclass
class Tail:
    """The rows of one query, collected while time passes."""

    query: str
    columns: tuple[str, ...] = ()
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    finished: bool = False
    """True if no further row will come, because the query has ended or the agent has gone."""
    error: str = ""

    def take(self, result: Any) -> None:
        """Takes one reply to the control request `tail`."""
        if isinstance(result, dict) and "rows" in result:
            self.columns = tuple(result.get("columns", self.columns))
            self.rows += [tuple(row) for row in result["rows"]]


class Backend(Protocol):
    """A world of agents."""

    topology: Topology
    latencies: Latencies

    @property
    def now(self) -> float:
        """Returns the seconds since the world began."""

    def start(self, node: Node) -> None:
        """Starts the agent of a node that has none running."""

    def alive(self, node: Node) -> bool:
        """Tells whether the node's agent runs."""

    def kill(self, node: Node, *, silent: bool = False) -> None:
        """Ends the process as SIGKILL does; with `silent`, its machine goes off as well."""

    def restart(self, node: Node, *, lose_data: bool = False) -> None:
        """Kills the agent if it runs, then starts it again."""

    def leave(self, node: Node) -> None:
        """Lets the agent leave gracefully and end."""

    def scale(self, pairs: PairMask, factor: float) -> None:
        """Makes the paths of these pairs `factor` times as long as at first."""

    def partition(self, groups: Sequence[Iterable[int]]) -> None:
        """Splits the network."""

    def heal(self) -> None:
        """Ends every partition."""

    def load(self, node: Node, fraction: float) -> None:
        """Lets other programs take this share of the machine's CPU."""

    def run(self, seconds: float) -> None:
        """Lets time pass."""

    def ask(self, node: Node, command: str, /, **arguments: Any) -> Any:
        """Returns the result of a control request; raises SbonError if the agent refuses, is gone, or does not answer."""

    def tail(self, query: str, node: Node) -> Tail:
        """Collects the rows of a query from now on."""

    def counters(self) -> dict[str, int]:
        """Returns the counters of the world itself."""

    def close(self) -> None:
        """Ends everything and leaves nothing behind."""


def node_number(topology: Topology, node: Node) -> int:
    """Returns the number of a node given by number or name; raises ConfigError if there is none."""
    return node if isinstance(node, int) else topology.index(node)
