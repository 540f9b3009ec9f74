"""`sbon testbed membership`: runs the stories of `sbon_testbed.membership.evaluation` and shows the results."""

import gc
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sbon.cli.output import print_note, print_record
from sbon.config import load
from sbon.errors import ConfigError, UsageError
from sbon.membership import MembershipConfig
from sbon_agent.config import AgentConfig
from sbon_testbed.json_files import JsonFile, write_json
from sbon_testbed.membership.evaluation import STORIES, MembershipTrial, Slow, evaluate
from sbon_testbed.membership.world import MembershipWorldConfig


def membership_command(
    agents: Annotated[int, typer.Option(metavar="N", help="Size of the overlay.")] = 100,
    profile: Annotated[str, typer.Option(metavar="default|FILE", help="Settings: [membership] of an agent's TOML file.")] = "default",
    slow: Annotated[Slow, typer.Option(help="Agents that stall: always the same, or any in turn.")] = "same",
    slow_share: Annotated[float, typer.Option(help="Share of the agents that stall.")] = 0.05,
    slow_s: Annotated[float, typer.Option(metavar="S", help="Virtual seconds with stalls and crashes.")] = 600.0,
    apart_s: Annotated[float, typer.Option(metavar="S", help="Virtual seconds for which the overlay is cut in two.")] = 600.0,
    story: Annotated[list[str] | None, typer.Option(metavar="NAME", help=f"Only {', '.join(STORIES)}; may be repeated.")] = None,
    loss: Annotated[float, typer.Option(help="Share of datagrams that are lost.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 1,
    json: JsonFile = None,
) -> None:
    """Let membership machines form, crash, stall, split and come back, in virtual time."""

    if not 0 <= loss < 1:
        raise UsageError(f"--loss {loss}, expected 0 to less than 1")
    stories = tuple(story or ())
    trial = MembershipTrial(agents=agents, seed=seed, slow=slow, slow_share=slow_share, slow_s=slow_s, apart_s=apart_s, stories=stories)
    gc.disable()  # millions of objects live to the end, and would be traversed repeatedly
    try:
        result = evaluate(trial, _profile(profile), MembershipWorldConfig(loss=loss), lambda line: print(line, file=sys.stderr, flush=True))
    finally:
        gc.enable()
    result["profile"] = profile
    if json is not None:
        write_json(json, result)
    if json != "-":
        show(result)


def _profile(name: str) -> MembershipConfig:
    if name == "default":
        return MembershipConfig()
    try:
        text = Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--profile {name}: {error.strerror}") from error
    return load(AgentConfig, text, name).membership


def _seconds(value: float | None) -> str:
    return "not reached" if value is None else f"{value:.1f} s"


def show(result: dict[str, Any]) -> None:
    """Prints the result for people."""
    print_note(f"{result['agents']} agents, seed {result['seed']}, {result['loss']:.0%} of datagrams lost; virtual time")
    print_record([*_found(result), ("took", f"{result['seconds']:.0f} s and {result['memory_mb']:.0f} MB")])


def _found(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the figures of the stories, with labels."""
    lines = []
    if (figures := result.get("formation")) is not None:
        lines.append(("all know all after", _seconds(figures["seconds"])))
    if (figures := result.get("idle")) is not None:
        datagrams = f"{figures['datagram_bytes_per_s']:.0f} bytes/s in {figures['datagrams_per_s']:.2f} datagrams/s"
        lines.append(("idle, each agent", f"{datagrams}, {figures['push_pull_bytes_per_s']:.0f} bytes/s in push-pulls"))
    if (figures := result.get("slow")) is not None:
        after = f"{_seconds(figures['median_s'])} (median), {_seconds(figures['p99_s'])} (99 %), {_seconds(figures['max_s'])} (last)"
        lines.append(("a crash is noticed after", f"{after}; {figures['crashes']} crashes, {figures['unnoticed']} views without it"))
        wrong = f"{figures['suspicions']} suspicions against the living, {figures['false_failures']} false failures"
        lines.append((f"{figures['agents']} slow agents for {figures['virtual_s']:.0f} s", wrong))
    if (figures := result.get("half_restarted")) is not None:
        lines.append(("half restarted at once: whole in", f"{_seconds(figures['seconds'])}, {figures['false_failures']} false failures"))
    if (figures := result.get("partition")) is not None:
        lines.append((f"cut in two for {figures['apart_s']:.0f} s: whole in", _seconds(figures["whole_s"])))
    if (figures := result.get("lower_incarnation")) is not None:
        back = f"{_seconds(figures['at_once_s'])}, or {_seconds(figures['after_30_s_s'])} when 30 s away"
        lines.append(("back with a lower incarnation in", back))
    return lines
