"""`sbon coordinates`: the agents' coordinates in the cost space, as a table, as JSON, and as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbon.cli.client import ControlClient, find_socket
from sbon.cli.options import Json, Socket, Wide
from sbon.cli.output import number, print_json, print_table, say, share
from sbon.cli.tables import Column
from sbon.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sbon.types import FloatArray

COLUMNS = (
    Column("name"),
    Column("region"),
    Column("x ms", right=True),
    Column("y ms", right=True),
    Column("height ms", right=True),
    Column("error", right=True),
    Column("load ms", right=True, wide=True),
)
SHOWN = ("alive", "suspect")
NAMES_MAX = 40
"""Most agents that are labelled by name; with more, each region has one label."""
LABEL_CHARS_MAX = 40
"""Longest label; longer names are cut to fit half of the picture."""
MARKER_AREA_MIN, MARKER_AREA_MAX = 25.0, 900.0
"""Marker areas of a node without height and of the highest one, in square points."""


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    app.command()(coordinates)


def coordinates(
    socket: Socket = None,
    json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw a picture into this file (PNG, SVG or PDF).", show_default=False)
    ] = None,
    wide: Wide = False,
) -> None:
    """Show where the agents are in the cost space.

    x and y are the two directions in which the agents differ most, in milliseconds of round trip: the distance between agents is their
    round trip less their heights (the time that it takes to leave a node, in any direction).

    \b
    Examples:
      sbon coordinates --plot space.png
      sbon coordinates --json
    """
    with ControlClient(find_socket(socket)) as agent:
        members = agent.ask("members")
    space = laid_out(members)
    if plot is not None:
        draw(space, plot)
    if json:
        print_json(space)
    else:
        print_table(COLUMNS, node_rows(space), empty="no coordinates yet", wide=wide)
        if space["nodes"]:
            say(f"x and y show {share(space['shown_share'])} of the variance between the agents")
    if plot is not None and not json:
        say(f"drawn to {plot}")


def laid_out(members: list[dict[str, Any]]) -> dict[str, Any]:
    """Projects the living members' coordinates so that two dimensions show as much as possible.

    Returns
    -------
    dict
        `nodes`: name, region, x_ms, y_ms and the coordinate of each, in order of name; `shown_share`: the share of the variance of the
        three latency dimensions in x and y (None without nodes).
    """
    found = sorted((m for m in members if m["status"] in SHOWN and m.get("coordinate")), key=lambda m: str(m["name"]))
    if not found:
        return {"nodes": [], "shown_share": None}
    import numpy as np

    flat, shown_share = principal(np.array([m["coordinate"]["vector"] for m in found], dtype=np.float64))
    nodes = [
        {
            "name": member["name"],
            "region": member.get("labels", {}).get("region"),
            "x_ms": round(float(x), 3) + 0.0,  # turns -0.0 into 0.0
            "y_ms": round(float(y), 3) + 0.0,
            "coordinate": member["coordinate"],
        }
        for member, (x, y) in zip(found, flat, strict=True)
    ]
    return {"nodes": nodes, "shown_share": round(shown_share, 4)}


def principal(vectors: "FloatArray") -> "tuple[FloatArray, float]":
    """Returns the first two principal components.

    Parameters
    ----------
    vectors : (nodes, 3)
        ms.

    Returns
    -------
    (nodes, 2)
        ms, around the mean; the same from run to run, as each axis points to where its largest weight is positive.
    float
        Share of the variance in them; 1 if there is no variance.

    Source
    ------
    Pearson, On lines and planes of closest fit to systems of points in space (1901), by way of the singular value decomposition.

    Examples
    --------
    >>> import numpy as np
    >>> principal(np.array([[0.0, 0.0, -3.0], [0.0, 0.0, 3.0]]))[0].tolist()
    [[-3.0, 0.0], [3.0, 0.0]]
    """
    import numpy as np

    centred = vectors - vectors.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=True)
    axes = axes * np.array([[1.0 if axis[np.argmax(np.abs(axis))] > 0 else -1.0] for axis in axes])
    total = float(np.sum(sizes**2))
    return centred @ axes[:2].T, float(np.sum(sizes[:2] ** 2)) / total if total > 0 else 1.0


def node_rows(space: dict[str, Any]) -> list[list[str]]:
    """Returns the rows of the table."""
    return [
        [
            node["name"],
            node["region"] or "-",
            number(node["x_ms"]),
            number(node["y_ms"]),
            number(node["coordinate"].get("height_ms")),
            share(node["coordinate"].get("error")),
            number(node["coordinate"].get("load_ms")),
        ]
        for node in space["nodes"]
    ]


def draw(space: dict[str, Any], path: Path) -> None:
    """Draws the picture, in the format of the file name's extension.

    Raises
    ------
    ConfigError
        There is nothing to draw, matplotlib is missing, or the file cannot be written.
    """
    if not space["nodes"]:
        raise ConfigError("there is nothing to draw: no agent has a coordinate yet")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed: pip install 'sbon[analysis]', or pip install matplotlib"
        ) from None
    figure = Figure(figsize=(10, 8), layout="constrained")
    fill(figure, space)
    try:
        figure.savefig(path, dpi=150)
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem.strerror or problem}") from problem
    except ValueError as problem:
        raise ConfigError(f"cannot draw {path}: {str(problem).splitlines()[0]}; name it FILE.png, FILE.svg or FILE.pdf") from problem


def fill(figure: "Figure", space: dict[str, Any]) -> None:
    """Draws the nodes of `laid_out`, at least one, into an empty figure."""
    axes = figure.add_subplot()
    nodes = space["nodes"]
    middle_ms = sum(limit(node["x_ms"] for node in nodes) for limit in (min, max)) / 2
    highest = max((node["coordinate"]["height_ms"] for node in nodes), default=0.0) or 1.0
    for region in sorted({node["region"] or "" for node in nodes}):
        here = [node for node in nodes if (node["region"] or "") == region]
        xs, ys = [node["x_ms"] for node in here], [node["y_ms"] for node in here]
        areas = [MARKER_AREA_MIN + (MARKER_AREA_MAX - MARKER_AREA_MIN) * node["coordinate"]["height_ms"] / highest for node in here]
        axes.scatter(xs, ys, s=areas, alpha=0.6, label=_short(region) or "no region")
        if len(nodes) > NAMES_MAX:
            _label(axes, region, (sum(xs) / len(xs), sum(ys) / len(ys)), middle_ms, fontsize=9, weight="bold")
    if len(nodes) <= NAMES_MAX:
        for node in nodes:
            _label(axes, node["name"], (node["x_ms"], node["y_ms"]), middle_ms, fontsize=8)
    axes.set_aspect("equal", adjustable="datalim")  # a millisecond is equally long in both directions
    axes.set_xlabel("ms of round trip, first axis: the direction in which agents differ most")
    axes.set_ylabel("ms of round trip, second axis: across the first, where they differ most")
    axes.set_title(
        f"{len(nodes)} agents; the axes show {share(space['shown_share'])} of their variance; "
        f"area of a mark: height, {highest:.1f} ms at most",
        fontsize=10,
    )
    axes.grid(alpha=0.3)
    legend = axes.legend(title="region", fontsize=8)
    for handle in legend.legend_handles:
        if handle is not None and hasattr(handle, "set_sizes"):
            handle.set_sizes([60.0])


def _label(axes: "Axes", text: str, at: tuple[float, float], middle_ms: float, **style: Any) -> None:
    """Writes a name beside a mark, on the side towards the middle of the picture, where there is room."""
    towards, alignment = (-4, "right") if at[0] > middle_ms else (4, "left")
    axes.annotate(_short(text), at, xytext=(towards, 4), textcoords="offset points", ha=alignment, **style)


def _short(text: str) -> str:
    return text if len(text) <= LABEL_CHARS_MAX else f"{text[: LABEL_CHARS_MAX - 1]}…"
