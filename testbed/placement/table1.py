"""`sbon testbed table1`: the placement paper's table 1 and figures 8 and 9 (SBON, section 4.1): its six strategies and sbon's default.

Each seed draws a transit-stub network of the paper's size, coordinates and queries. Tables show means over seeds; figures show the queries
of all seeds together.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from sbon.cli.options import Wide
from sbon.errors import ConfigError
from sbon_testbed.documents import print_document
from sbon_testbed.json_files import write_json
from sbon_testbed.placement.evaluation import IP_MULTICAST, OPTIMAL, Evaluation, evaluate
from sbon_testbed.placement.network import ROUNDS, Report, transit_stub
from sbon_testbed.placement.plots import Curve, draw_distribution, require_matplotlib
from sbon_testbed.progress import Progress


class PaperRow(NamedTuple):
    """A row of the paper's table 1."""

    title: str
    usage_penalty: float
    delay_penalty: float


PAPER: dict[str, PaperRow] = {
    OPTIMAL: PaperRow("OPTIMAL", 0.0, 0.13),
    "relaxation": PaperRow("RELAXATION", 0.15, 0.24),
    IP_MULTICAST: PaperRow("IP MULTICAST", 0.27, 0.0),
    "producer": PaperRow("PRODUCER", 0.43, 0.75),
    "consumer": PaperRow("CONSUMER", 0.60, 0.0),
    "random": PaperRow("RANDOM", 0.81, 0.76),
}
"""Results of the paper, in its order, which is that of network usage."""
OURS: dict[str, str] = {"least-usage": "least-usage (the default)", "least-usage-unprobed": "least-usage without probes"}
TITLES = {name: row.title for name, row in PAPER.items()} | OURS
SEEDS_MAX = 100


def run(
    seeds: Sequence[int], queries: int, rounds: int = ROUNDS, stub_domains: int = 150, report: Report | None = None
) -> list[Evaluation]:
    """Places the paper's queries by all strategies, on one network for each seed."""
    evaluations = []
    for seed in seeds:

        def step(what: str, done: int, total: int, seed: int = seed) -> None:
            if report is not None:
                report(f"seed {seed}, {what}", done, total)

        network = transit_stub(seed, stub_domains)
        evaluations.append(evaluate(network, queries=queries, seed=seed, rounds=rounds, strategies=tuple(TITLES), report=step))
    return evaluations


def table(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Returns the contents of table1.json: means over the seeds, and the figures of each seed. Penalties are fractions.

    Times are left out, so that the same seeds give the same file.
    """
    rows: dict[str, Any] = {}
    for name, title in TITLES.items():
        by_seed = []
        for evaluation in evaluations:
            figures = evaluation.tallies[name].result()
            del figures["milliseconds_per_query"]
            by_seed.append(figures)
        mean = {key: float(np.mean([figures[key] for figures in by_seed])) for key in by_seed[0]}
        paper = PAPER.get(name)
        beside = None if paper is None else {"usage_penalty_mean": paper.usage_penalty, "delay_penalty_mean": paper.delay_penalty}
        rows[name] = {"title": title, **mean, "paper": beside, "by_seed": by_seed}
    usages = [rows[name]["usage_penalty_mean"] for name in PAPER]
    return {
        "strategies": rows,
        "order_as_in_paper": usages == sorted(usages),
        "queries": evaluations[0].queries,
        "nodes": [evaluation.nodes for evaluation in evaluations],
        "seeds": [evaluation.seed for evaluation in evaluations],
        "rounds": evaluations[0].rounds,
        "coordinate_median_error": float(np.mean([evaluation.coordinate_median_error for evaluation in evaluations])),
    }


def markdown(result: Mapping[str, Any]) -> str:
    """Returns the figures as Markdown."""
    nodes = ", ".join(str(count) for count in sorted(set(result["nodes"])))
    lines = [
        f"{result['queries']:,} queries on each of {len(result['seeds'])} transit-stub networks of {nodes} nodes (seeds"
        f" {', '.join(map(str, result['seeds']))}); coordinates after {result['rounds']} round trips a node, off by"
        f" {result['coordinate_median_error']:.1%} (median). Mean over the seeds; in the paper: Pietzuch et al., ICDE 2006, table 1.",
        "",
        "| algorithm | network usage penalty | in the paper | delay penalty | in the paper | usage, 80th percentile | probes a query |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for figures in result["strategies"].values():
        paper = figures["paper"]
        beside = ("", "") if paper is None else (f"{paper['usage_penalty_mean']:.0%}", f"{paper['delay_penalty_mean']:.0%}")
        lines.append(
            f"| {figures['title']} | {figures['usage_penalty_mean']:.1%} | {beside[0]} | {figures['delay_penalty_mean']:.1%} | {beside[1]}"
            f" | {figures['usage_penalty_p80']:.1%} | {figures['probes_per_query']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def draw(evaluations: Sequence[Evaluation], out: Path) -> None:
    """Draws figure8.png and figure9.png."""
    for number, quantity, field in ((8, "network usage penalty", "usage_penalty"), (9, "delay penalty", "delay_penalty")):
        curves = [
            Curve(title, np.sort(np.concatenate([getattr(evaluation.tallies[name], field) for evaluation in evaluations])), name in OURS)
            for name, title in TITLES.items()
        ]
        queries = sum(evaluation.queries for evaluation in evaluations)
        draw_distribution(out / f"figure{number}.png", f"Distribution of the {quantity} over {queries:,} queries", quantity, curves)


def table1_command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="table1.json, table1.md, figure8.png and figure9.png go here; made if missing.")],
    queries: Annotated[int, typer.Option(metavar="N", min=1, help="Number of queries to place on each network.")] = 1000,
    seeds: Annotated[str, typer.Option(metavar="N,N,...", help="Seeds; each draws a network, its coordinates and queries.")] = "1,2,3",
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="RTTs that each node measures for its coordinate first.")] = ROUNDS,
    stub_domains: Annotated[
        int, typer.Option(metavar="N", min=1, max=300, help="Number of stub domains, with 10 nodes each; the paper has 150.")
    ] = 150,
    json: Annotated[bool, typer.Option("--json", help="Print table1.json instead of table1.md.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    wide: Wide = False,
) -> None:
    """Repeat the placement paper's table 1 and its figures 8 and 9: its six algorithms and sbon's, on 1,550 nodes.

    \b
    Examples:
      sbon testbed table1 --out table1
      sbon testbed table1 --out quick --queries 100 --seeds 1 --stub-domains 30 --rounds 100
    """

    chosen = _seeds(seeds)
    require_matplotlib()  # fail now rather than after minutes of work
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigError(f"--out {out}: {problem.strerror}") from problem
    evaluations = run(chosen, queries, rounds, stub_domains, Progress(wanted=not quiet))
    result = table(evaluations)
    write_json(str(out / "table1.json"), result)
    text = markdown(result)
    try:
        (out / "table1.md").write_text(text, encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"cannot write {out / 'table1.md'}: {problem.strerror}") from problem
    draw(evaluations, out)
    if json:
        write_json("-", result)
    else:
        print_document(text, wide=wide)


def _seeds(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words) or len(words) > SEEDS_MAX or len(set(words)) < len(words):
        raise typer.BadParameter(f"--seeds {text}, expected up to {SEEDS_MAX} different whole numbers with commas between them, as 1,2,3")
    return tuple(int(word) for word in words)
