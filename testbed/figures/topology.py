"""Draws the operators of a few queries and the streams between them, producers on the left, consumers on the right."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sbon.types import OperatorId

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = {"source": ("#9ecae1", "o"), "join": ("#ff7f0e", "s"), "multicast": ("#2ca02c", "D"), "sink": ("#d62728", "^")}
NAMES = {"source": "producer", "join": "join and selection", "multicast": "multicast", "sink": "consumer"}
OTHER = ("#bbbbbb", "o")


def layers(topology: Mapping[str, Any]) -> dict[OperatorId, tuple[float, float]]:
    """Returns the position of each operator: the column is its depth, the height follows the mean of its inputs' heights.

    Consumers share the last column. Heights lie between 0 and 1.
    """
    before: dict[OperatorId, list[OperatorId]] = {one["id"]: [] for one in topology["operators"]}
    for link in topology["links"]:
        before[link["target"]].append(link["source"])
    depth: dict[OperatorId, int] = {}
    # Longest paths, one layer more in each round; a plan has no cycles.
    for _ in before:
        for operator, sources in before.items():
            depth[operator] = 1 + max((depth.get(source, 0) for source in sources), default=-1)
    last = max(depth.values(), default=0)
    kinds = {one["id"]: one["kind"] for one in topology["operators"]}
    column = {operator: last if kinds[operator] == "sink" else at for operator, at in depth.items()}
    height: dict[OperatorId, float] = {}
    for layer in range(last + 1):
        members = [operator for operator in before if column[operator] == layer]
        members.sort(key=lambda operator: (_mean([height[s] for s in before[operator] if s in height]), operator))
        for index, operator in enumerate(members):
            height[operator] = (index + 0.5) / len(members)
    return {operator: (float(column[operator]), height[operator]) for operator in before}


def without_projections(topology: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the topology without maps, which only reorder columns at the consumer; each map's input feeds its outputs directly."""
    maps = {one["id"] for one in topology["operators"] if one["kind"] == "map"}
    feeds = {link["target"]: link for link in topology["links"] if link["target"] in maps}
    links = []
    for link in topology["links"]:
        if link["target"] in maps:
            continue
        first = link
        while first["source"] in feeds:
            first = feeds[first["source"]]
        links.append({"source": first["source"], "target": link["target"], "bytes_per_s": link["bytes_per_s"]})
    return {"operators": [one for one in topology["operators"] if one["id"] not in maps], "links": links}


def draw_topology(axes: "Axes", topology: Mapping[str, Any]) -> None:
    """Draws operators with the names of their nodes, and arrows as thick as their rates."""
    shown = without_projections(topology)
    at = layers(shown)
    most = max((link["bytes_per_s"] for link in shown["links"]), default=1.0) or 1.0
    for link in shown["links"]:
        width = 0.5 + 2.0 * link["bytes_per_s"] / most
        style = {"arrowstyle": "-|>", "color": "#888888", "linewidth": width, "shrinkA": 7, "shrinkB": 7}
        axes.annotate("", at[link["target"]], at[link["source"]], arrowprops=style, zorder=1)
    for kind in ("source", "join", "multicast", "sink"):
        members = [one for one in shown["operators"] if one["kind"] == kind]
        colour, marker = STYLES.get(kind, OTHER)
        if members:
            across, down = ([at[one["id"]][axis] for one in members] for axis in (0, 1))
            axes.scatter(across, down, s=110, color=colour, marker=marker, zorder=3, label=NAMES[kind])
        for one in members:
            axes.annotate(one["node"], at[one["id"]], xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xlim(-0.3, max((x for x, _ in at.values()), default=1.0) + 0.3)
    axes.set_ylim(-0.02, 1.08)
    axes.axis("off")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4, frameon=False)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.5
