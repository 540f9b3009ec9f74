"""`sbon testbed cep`: runs and prints the evaluation of windows dealt to instances under a latency bound."""

import os
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from sbon.cli.output import print_note, print_table
from sbon.cli.tables import Column
from sbon.errors import UsageError
from sbon_testbed.json_files import JsonFile, write_json
from sbon_testbed.progress import Progress


class Part(StrEnum):
    """Stories of the evaluation."""

    PEAKS = "peaks"
    REACTIVE = "reactive"
    GAINS = "gains"
    PREDICTION = "prediction"
    TRAFFIC = "traffic"
    TRAFFIC_FAST = "traffic-fast"
    TRAFFIC_STEPS = "traffic-steps"
    FACES = "faces"
    FACES_BURSTS = "faces-bursts"
    SCALING = "scaling"


def cep_command(
    story: Annotated[list[Part] | None, typer.Option(help="Only this story; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Number of streams of each story, one for each seed.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="First seed.")] = 1,
    future: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of streams that a dealer that knows the future deals as well.")
    ] = 1,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", min=60.0, help="Length of the streams under bounds. [5 h of traffic, 150 min of faces; 6000 s with --engine]"
        ),
    ] = None,
    bound: Annotated[
        list[float] | None, typer.Option(metavar="S", min=0.01, help="Only this latency bound, for stories with bounds; may be repeated.")
    ] = None,
    engine: Annotated[
        bool,
        typer.Option(
            "--engine",
            help="Run traffic and faces on a real agent, 20 times as fast, and in virtual time beside it; one stream, of --seed.",
        ),
    ] = False,
    json: JsonFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Deal windows to eight instances under latency bounds, in virtual time, and compare dealers.

    \b
    Examples:
      sbon testbed cep --story faces
      sbon testbed cep --story traffic --seeds 8 --json traffic.json
      sbon testbed cep --story peaks --story gains --story prediction --story scaling
      sbon testbed cep --engine --story faces --bound 30
      sbon testbed cep --engine --seconds 1200 --json engine.json
    """
    from sbon_testbed.cep import bounds, single
    from sbon_testbed.cep.stories import STORIES

    progress = Progress(wanted=not quiet)
    if engine:
        _engine(story or [Part.TRAFFIC, Part.FACES], seed, seconds, bound or (), json, progress)
        return
    unbound = [part.value for part in story or () if part not in STORIES]
    if bound and unbound:
        raise UsageError(f"--story {unbound[0]} has no latency bounds, expected {', '.join(STORIES)} with --bound")
    wanted = story or list(Part)
    all_seeds = list(range(seed, seed + seeds))
    result: dict[str, Any] = {"seeds": all_seeds, "cores": os.cpu_count()}
    for part in wanted:
        if part in STORIES:
            result[part.value] = bounds.evaluate_bounds(part.value, all_seeds, future, progress, seconds, bound or ())
        elif part is Part.PEAKS:
            result[part.value] = single.evaluate_peaks(all_seeds, progress)
        elif part is Part.REACTIVE:
            result[part.value] = single.evaluate_reactive(all_seeds, progress)
        elif part is Part.GAINS:
            result[part.value] = single.evaluate_gains(seed, progress)
        elif part is Part.PREDICTION:
            result[part.value] = single.evaluate_prediction(seed, progress)
        else:
            result[part.value] = single.evaluate_scaling(progress)
    if json is not None:
        write_json(json, result)
    if json != "-":
        for part in wanted:
            show(part.value, result[part.value])


def _engine(
    wanted: Sequence[Part], seed: int, seconds: float | None, bounds_s: Sequence[float], json: str | None, progress: Progress
) -> None:
    """Runs stories on a real agent, prints their figures, and writes them."""
    from sbon_testbed.cep.engine import ENGINE_STORIES, evaluate_engine

    others = [part.value for part in wanted if part not in ENGINE_STORIES]
    if others:
        raise UsageError(f"--story {others[0]} does not run on agents, expected {' or '.join(ENGINE_STORIES)} with --engine")
    found = {part.value: evaluate_engine(part.value, seed, progress, seconds, bounds_s) for part in dict.fromkeys(wanted)}
    if json is not None:
        write_json(json, {"cores": os.cpu_count(), "engine": found})
    if json != "-":
        for name, figures in found.items():
            show_engine(name, figures)


def show(name: str, found: dict[str, Any]) -> None:
    """Prints the results of one story as tables."""
    if "bounds" in found:
        show_bounds(name, found["bounds"])
    elif name == Part.PEAKS:
        for operator in ("traffic", "faces"):
            print_note(f"peaks of one batch, {operator}")
            rows = [[str(number), *(f"{row[key]:.1f}" for key in _PEAKS)] for number, row in enumerate(found[operator], 1)]
            print_table((Column("row"), *(Column(key, right=True) for key in _PEAKS)), rows)
    elif name == Part.REACTIVE:
        print_note("reactive: threshold 0.1 s, bound 1 s, by scope")
        rows = [[scope, f"{row['peak_s']:.2f}", f"{row['over_bound']:.2%}"] for scope, row in found.items()]
        print_table((Column("scope s"), Column("peak s", right=True), Column("over bound", right=True)), rows)
    elif name == Part.GAINS:
        rows = [
            [operator, bins, sign, *_stick(row[sign])]
            for operator, by_bins in found.items()
            for bins, row in by_bins.items()
            for sign in ("negative", "positive")
        ]
        print_note("gains, predicted : measured")
        print_table((Column("operator"), Column("bins"), Column("gain"), *_STICK_COLUMNS), rows)
    elif name == Part.PREDICTION:
        print_note("longest wait, predicted : measured, by alpha")
        print_table((Column("alpha"), *_STICK_COLUMNS), [[alpha, *_stick(row)] for alpha, row in found.items() if isinstance(row, dict)])
    else:
        print_note("scaling: a decision of the model by bins, the statistics of one bin count by rows")
        print_table((Column("bins"), Column("decision us", right=True)), [[bins, f"{us:.1f}"] for bins, us in found["decision_us"].items()])
        print_table(
            (Column("rows"), Column("statistics ms", right=True)), [[rows, f"{ms:.1f}"] for rows, ms in found["statistics_ms"].items()]
        )


_PEAKS = ("peak_s", "paper_peak_s", "feedback_s", "paper_feedback_s")
_STICK = ("p10", "p25", "p50", "p75", "p90")
_STICK_COLUMNS = tuple(Column(title, right=True) for title in (*_STICK, "below 1"))


def _stick(row: dict[str, float]) -> list[str]:
    """Returns the quantiles and the share below 1 as texts."""
    return [*(f"{row[key]:.2f}" if key in row else "-" for key in _STICK), f"{row['below_1']:.1%}"]


def show_bounds(name: str, found: dict[str, dict[str, dict[str, float]]]) -> None:
    """Prints the results of a story under bounds as a table."""
    print_note(f"{name}: events sent against round robin, over all seeds")
    rows = [
        [
            bound,
            dealer,
            f"{row['events_sent']:,.0f}",
            f"{-row['saved']:.1%}",
            f"{row['peak_s']:.2f}",
            f"{1e6 * row['over_bound']:,.0f}",
            f"{row['decision_us']:.1f}",
        ]
        for bound, dealers in found.items()
        for dealer, row in dealers.items()
    ]
    titles = ("sent", "saved", "worst peak s", "over ppm", "decision us")
    print_table((Column("bound s"), Column("dealer"), *(Column(title, right=True) for title in titles)), rows)


def show_engine(name: str, found: dict[str, Any]) -> None:
    """Prints the results of a story on a real agent, beside virtual time, as a table."""
    waits = f"{found['instances']} instances, whose recogniser waits instead of computing"
    print_note(f"{name} on an agent, {found['speed']} times as fast: {found['rows']:,} rows, {waits}")
    print_note("in the paper's seconds; dealers with a name are in virtual time")
    rows = []
    for bound, ran in found["bounds"].items():
        predicted = ran["predicted_peak_s"]
        rows.append([bound, "on the agent", *_dealt(ran), "-" if predicted is None else f"{predicted:.2f}", f"{ran['load_after']:.1f}"])
        rows += [[bound, dealer, *_dealt(row), "-", "-"] for dealer, row in ran["virtual"].items()]
    titles = ("sent", "saved", "peak s", "late", "predicted s", "load")
    print_table((Column("bound s"), Column("dealer"), *(Column(title, right=True) for title in titles)), rows)


def _dealt(row: dict[str, float]) -> list[str]:
    """Returns the rows sent, the share saved, the peak and the share over the bound as texts."""
    return [f"{row['events_sent']:,.0f}", f"{0 - row['saved']:.1%}", f"{row['peak_s']:.2f}", f"{row['over_bound']:.2%}"]
