"""`sbon testbed figures`: runs the experiments of SBON, section 4.2, writes the results and draws them."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from sbon.cli.options import Wide
from sbon.errors import ConfigError
from sbon_testbed.documents import print_document
from sbon_testbed.figures.experiments import EXPERIMENTS, FULL, QUICK, run_figures
from sbon_testbed.figures.plots import draw_figure10, draw_figure11, draw_figure12, draw_figure13, draw_zipf
from sbon_testbed.figures.text import as_text
from sbon_testbed.figures.world import MeasuredNetwork, read_loads, read_measured
from sbon_testbed.json_files import JsonFile, write_json
from sbon_testbed.placement.plots import require_matplotlib
from sbon_testbed.progress import Progress

FILES = {"planetlab": "rtt/planetlab490.npz", "seattle": "rtt/seattle99.npz", "load": "load/aws_server_metrics.csv.gz"}
"""Names of the measured files in a folder of data."""
SEATTLE_NODES = 99


def figures_command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="PNG files, figures.json and figures.md go here; made if missing.")],
    data: Annotated[Path | None, typer.Option(metavar="DIR", help=f"Folder with {', '.join(FILES.values())}.")] = None,
    planetlab: Annotated[Path | None, typer.Option(metavar="FILE", help="RTTs over time, .npz with key rtt; not that of --data.")] = None,
    seattle: Annotated[Path | None, typer.Option(metavar="FILE", help="RTTs of Seattle over time, likewise.")] = None,
    load: Annotated[Path | None, typer.Option(metavar="FILE", help="CPU use over time: series,time,value as .csv.gz.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help=f"Only this experiment: {', '.join(EXPERIMENTS)}; may be repeated. Figure 11 comes with figure10."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small and short: shows that everything works; the figures mean nothing.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same figures.")] = 1,
    json: JsonFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    wide: Wide = False,
) -> None:
    """Repeat the placement paper's experiments (figures 10 to 13) with real agents in virtual time on measured networks.

    \b
    Examples:
      sbon testbed figures --data ../shared/data --out figures
      sbon testbed figures --data ../shared/data --out figures --only figure13 --seed 2
    """

    unknown = [name for name in only or () if name not in EXPERIMENTS]
    if unknown:
        raise typer.BadParameter(f"--only {unknown[0]}, expected one of {', '.join(EXPERIMENTS)}")
    require_matplotlib()  # fail now rather than after minutes of work
    paths = _found(data, {"planetlab": planetlab, "seattle": seattle, "load": load})
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigError(f"cannot make {out}: {problem.strerror}") from problem

    def read(name: str, nodes: int, slices: int | None) -> MeasuredNetwork:
        count = min(nodes, SEATTLE_NODES) if name == "Seattle" else nodes
        return read_measured(name, paths[name.lower()], count, seed, slices)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = run_figures(
            read, read_loads(paths["load"]), QUICK if quick else FULL, seed, Progress(not quiet), tuple(only or EXPERIMENTS)
        )
    except KeyboardInterrupt:
        print("sbon testbed figures: interrupted; nothing was written", file=sys.stderr)
        raise typer.Exit(130) from None
    write_json(str(out / "figures.json"), result)
    if json is not None:
        write_json(json, result)
    if "figure10" in result:
        draw_figure10(out / "figure10.png", result["figure10"])
        draw_figure11(out / "figure11.png", result["figure10"])
    for name, draw in (("figure12", draw_figure12), ("figure13", draw_figure13), ("zipf", draw_zipf)):
        if name in result:
            draw(out / f"{name}.png", result[name])
    text = as_text(result)
    (out / "figures.md").write_text(text, encoding="utf-8")
    if json != "-":
        print_document(text, wide=wide)


def _found(data: Path | None, given: dict[str, Path | None]) -> dict[str, Path]:
    """Returns the files to read.

    Raises
    ------
    ConfigError
        A file is missing.
    """
    paths = {}
    for name, path in given.items():
        if path is None and data is None:
            raise ConfigError(f"no {name} file: give --{name} FILE, or --data DIR with {FILES[name]} in it")
        paths[name] = path if path is not None else (data or Path()) / FILES[name]
        if not paths[name].is_file():
            raise ConfigError(f"{paths[name]}: no such file; give --{name} FILE, or --data DIR with {FILES[name]} in it")
    return paths
