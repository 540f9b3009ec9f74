"""`sbon testbed deadlines`: runs and prints the evaluation of plans for latency bounds and of scheduling by deadline."""

import os
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from sbon.cli.output import print_note, print_table
from sbon.cli.tables import Column
from sbon_testbed.json_files import JsonFile, write_json
from sbon_testbed.progress import Progress


class Part(StrEnum):
    """Parts of the evaluation."""

    MODEL = "model"
    RULES = "rules"
    VALID = "valid"
    MEMORY = "memory"
    OVERLOAD = "overload"
    DISK = "disk"
    AGENTS = "agents"


class Name(StrEnum):
    """Workloads."""

    SESSIONS = "sessions"
    WORDS = "words"
    WINDOWS = "windows"


def deadlines_command(
    part: Annotated[list[Part] | None, typer.Option(help="Only this part; may be repeated.")] = None,
    workload: Annotated[list[Name] | None, typer.Option(help="model, rules: only this workload; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 1,
    seconds: Annotated[float, typer.Option(metavar="S", min=0.2, help="Virtual seconds of a run, without its start.")] = 4.0,
    jobs: Annotated[int, typer.Option(metavar="N", min=0, help="valid: number of random jobs.")] = 50,
    json: JsonFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Predict latency and compare it with virtual time; compare plans with rules of thumb, and schedulers with an upper bound.

    \b
    Examples:
      sbon testbed deadlines
      sbon testbed deadlines --part disk --part memory --json deadlines.json
      sbon testbed deadlines --part model --workload words --seconds 2
    """
    progress = Progress(wanted=not quiet)
    wanted, names = part or list(Part), [one.value for one in workload or list(Name)]
    result: dict[str, Any] = {"seeds": [seed], "cores": os.cpu_count(), "seconds": seconds}
    shows: list[Callable[[], None]] = []
    if {Part.MODEL, Part.RULES, Part.VALID} & set(wanted):
        from sbon_testbed.deadlines.plans import evaluate_model, evaluate_rules, evaluate_valid, summary_of_model

        if Part.MODEL in wanted:
            result["model"] = evaluate_model(names, seconds, seed, progress)
            result["model_summary"] = summary_of_model(result["model"])
            shows.append(lambda: show_model(result["model"], result["model_summary"]))
        if Part.RULES in wanted:
            result["rules"] = evaluate_rules(names, seconds, seed, progress)
            shows.append(lambda: show_rules(result["rules"]))
        if Part.VALID in wanted:
            result["valid"] = evaluate_valid(seconds, seed, progress, jobs=jobs)
            result["planner_ms"] = result["valid"].pop("planner_ms")
            shows.append(lambda: show_valid(result["valid"], result["planner_ms"]))
    if {Part.MEMORY, Part.OVERLOAD, Part.DISK} & set(wanted):
        from sbon_testbed.deadlines.scheduling import evaluate_disk, evaluate_memory, evaluate_overload

        for one, evaluate, by in (
            (Part.MEMORY, evaluate_memory, "MB for states"),
            (Part.OVERLOAD, evaluate_overload, "M rows/s"),
            (Part.DISK, evaluate_disk, "us on disk"),
        ):
            if one in wanted:
                found = result[one.value] = evaluate(seconds, seed, progress)
                shows.append(lambda one=one, by=by, found=found: show_policies(one.value, by, found))  # type: ignore[misc]
    if Part.AGENTS in wanted:
        from sbon_testbed.deadlines.agents import evaluate_agents, evaluate_agents_disk

        result["agents"] = evaluate_agents(seconds, seed, progress)
        result["agents_disk"] = evaluate_agents_disk(seconds, seed, progress)
        shows.append(lambda: show_agents(result["agents"]))
        shows.append(lambda: show_agents_disk(result["agents_disk"]))
    if json is not None:
        write_json(json, result)
    if json != "-":
        for show in shows:
            show()


def show_model(runs: dict[str, Any], summary: dict[str, Any]) -> None:
    """Prints the part `model` as a table."""
    print_note("model: latency in virtual time, predicted and measured, in seconds")
    rows = [
        [
            name,
            f"{one['load']:.2f}",
            *(f"{one[side][key]:.3f}" for key in ("mean_s", "p99_s") for side in ("predicted", "measured")),
            f"{one['error']['mean']:+.1%}",
            f"{one['error']['p99']:+.1%}",
        ]
        for name, one in runs.items()
    ]
    titles = ("load", "mean", "seen", "p99", "seen", "error", "of p99")
    print_table((Column("run"), *(Column(title, right=True) for title in titles)), rows)
    print_note(
        f"  mean within 10 %: {summary['mean_within_10_percent']} of {summary['runs']} (worst {summary['mean_worst']:.1%}); "
        f"p99 within 20 %: {summary['p99_within_20_percent']} (worst {summary['p99_worst']:.1%}); "
        f"bound of p99: {summary['p99_unseen_least']:.2f} to {summary['p99_unseen_greatest']:.2f} times it"
    )
    print_note(f"  phases above 5 ms within 10 %: {summary['slow_phases_within_10_percent']} of {summary['slow_phases']}")


def show_rules(found: dict[str, Any]) -> None:
    """Prints the part `rules` as tables."""
    for name, one in found.items():
        what = f"rules: {name}, mean latency at {one['rate']:,.0f} rows/s, bound {one['bound_s']} s"
        print_note(f"{what}; M = R = 4, intervals in ms (-: without bound)")
        rows = [[key, "-" if value is None else f"{value:.3f}"] for key, value in one["settings"].items()]
        planned = one["planned"]
        text = f"planned: M {planned['maps']}, R {planned['updates']}, {1000 * planned['exchange_s']:.0f}-{1000 * planned['poll_s']:.0f}"
        print_table((Column("exchange-poll"), Column("mean s", right=True)), [*rows, [text, f"{planned['mean_s']:.3f}"]])
        if one["gain"] is not None:
            best = max(one["rates_max"].values())
            print_note(f"  highest rate: planned {planned['rate_measured_max']:,.0f}, best rule {best:,.0f} rows/s ({one['gain']:+.1%})")


def show_valid(found: dict[str, Any], planner_ms: dict[str, float] | None) -> None:
    """Prints the part `valid` in a few lines."""
    for metric in ("mean", "p99"):
        one = found[metric]
        holds = "holds" if one["planned_holds"] else "does NOT hold"
        print_note(
            f"valid: words, {metric} within 1 s at {one['rate']:,.0f} rows/s: planned {holds}, {len(one['valid'])} of {one['settings']} "
            f"settings hold; wrongly predicted to hold: {len(one['false_valid'])}, not to hold: {len(one['false_invalid'])}"
        )
    print_note(f"  random jobs: {found['jobs']['hold']} of {found['jobs']['jobs']} plans hold")
    if planner_ms:
        print_note(f"  a plan takes {planner_ms['median']:.0f} ms (median), {planner_ms['most']:.0f} at most")


def show_policies(title: str, by: str, found: dict[str, Any]) -> None:
    """Prints the utilities of policies as a table."""
    print_note(f"{title}: share of rows in time, by policy; bound: upper bound for any policy")
    keys = ("load", "none", "batch_edf", "dover", "tree", "cells", "bound", "of_bound")
    rows = [[name, *(f"{one[key]:.3f}" for key in keys)] for name, one in found.items()]
    rows += [[f"{name}, bursts", *(f"{one['burst'][key]:.3f}" for key in keys)] for name, one in found.items() if "burst" in one]
    print_table((Column(by), *(Column(key.replace("_", " "), right=True) for key in keys)), rows)


def show_agents(found: dict[str, Any]) -> None:
    """Prints the part `agents` as a table."""
    print_note("agents: share of rows in time, by on_miss, with the engine in virtual time; bound: upper bound for any choice")
    keys = ("load", "finish", "shed", "defer", "bound", "of_bound")
    counts = ("shed_left_out", "defer_left_out")
    rows = [[name, *(f"{one[key]:.3f}" for key in keys), *(f"{one[key]:,}" for key in counts)] for name, one in found.items()]
    titles = (*(key.replace("_", " ") for key in keys), "rows shed", "deferred")
    print_table((Column("M rows/s"), *(Column(title, right=True) for title in titles)), rows)


def show_agents_disk(found: dict[str, Any]) -> None:
    """Prints the part `agents` with states on disk as a table."""
    print_note("agents, most states on disk: share of rows in time, and rows shed with states in memory and on disk")
    rows = [[name, f"{one['in_time']:.3f}", *(f"{shed:,}" for shed in one["shed_rows"] or (0, 0))] for name, one in found.items()]
    print_table((Column("on_miss"), *(Column(title, right=True) for title in ("in time", "in memory", "on disk"))), rows)
