"""`sbon bench`: measurements of sbon on this machine; docs/benchmarks.md reports them."""

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from sbon.cli.options import Wide
from sbon_testbed.json_files import JsonFile, write_json

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def register(app: typer.Typer) -> None:
    """Adds `sbon bench` to the program; called through the entry point group `sbon.commands`."""
    bench = typer.Typer(no_args_is_help=True, help="Measure sbon on this machine.", rich_markup_mode=None)
    bench.callback()(_bench)
    bench.command("probe", epilog="Examples: sbon bench probe --seconds 60 --json")(probe)
    bench.command("wan", epilog="Examples: sbon bench wan --seconds 5 --json")(wan)
    bench.command("placement", epilog="Examples: sbon bench placement; sbon bench placement --nodes 1000000 --json")(placement)
    bench.command("telemetry", epilog="Examples: sbon bench telemetry --agents 16 --queries 4")(telemetry)
    bench.command(
        "engine",
        epilog="Examples: sbon bench engine --runs 5 --json; sbon bench engine --rows csv; sbon bench engine --stalled 600",
    )(engine)
    bench.command("operators", epilog="Examples: sbon bench operators; sbon bench operators --rows 1000 --only session --json")(operators)
    bench.command("costs", epilog="Examples: sbon bench costs --part law --json; sbon bench costs --part accounting --runs 20")(costs)
    bench.command("match", epilog="Examples: sbon bench match; sbon bench match --rows 4000000 --only PREV --json")(match)
    bench.command("closing", epilog="Examples: sbon bench closing; sbon bench closing --keys 100000 --json")(closing)
    bench.command("link", epilog="Examples: sbon bench link; sbon bench link --seconds 5 --runs 5 --json")(link)
    bench.command("outage", epilog="Examples: sbon bench outage; sbon bench outage --seconds 600 --rate 20000 --json")(outage)
    bench.command("recovery", epilog="Examples: sbon bench recovery --kills 12; sbon bench recovery --seed 2 --json")(recovery)
    bench.command("calm", epilog="Examples: sbon bench calm; sbon bench calm --runs 15 --json")(calm)
    bench.command("nexmark", epilog="Examples: sbon bench nexmark --query q5 --query q7; sbon bench nexmark --runs 5 --json")(nexmark)
    bench.command("migrate", epilog="Examples: sbon bench migrate; sbon bench migrate --states 1MB --rtt 0 --runs 1 --json")(migrate)
    bench.command(
        "input",
        epilog="Examples: sbon bench input --json input.json; sbon bench input --source csv --workload W1 --sink discard --rows 1000000",
    )(input_)
    bench.command("peers", epilog="Examples: sbon bench peers --flink flink/bin/python; sbon bench peers --flink PYTHON --json")(peers)
    bench.command("state", epilog="Examples: sbon bench state --json; sbon bench state --keys 1000000 --store runs --key text")(state)
    bench.command("disk", epilog="Examples: sbon bench disk --json; sbon bench disk --operator hopping --budget 40 --keys 1000000")(disk)
    app.add_typer(bench, name="bench")


def _bench() -> None:
    """Measure sbon on this machine."""


def _progress(what: str) -> None:
    """Prints to standard error what is being measured."""
    print(what, file=sys.stderr, flush=True)


def _tell(result: dict[str, Any], show: Callable[..., None], json: bool, **how: bool) -> None:
    """Prints a result: as JSON, or with `show` as a table."""
    from sbon.cli.output import print_json

    if json:
        print_json(result)
    else:
        show(result, **how)


def probe(
    seconds: Annotated[float, typer.Option(metavar="S", help="Seconds to measure: half of them idle, half saturated.")] = 60.0,
    plain: Annotated[bool, typer.Option("--plain", help="Without a cluster key: datagrams are not sealed.")] = False,
    json: Json = False,
) -> None:
    """Show the round trips that two agents on loopback measure, idle and with all operator threads busy."""
    from sbon_testbed.bench.probe import measure, show

    result = measure(seconds, _progress, sealed=not plain)
    _tell(result, show, json)


def wan(
    seconds: Annotated[float, typer.Option(metavar="S", help="Seconds to measure for each line of the table.")] = 4.0,
    json: Json = False,
) -> None:
    """Show how precisely and how fast the router between network namespaces works. Needs root."""
    from sbon_testbed.netns.bench import measure, show

    result = measure(seconds, _progress)
    _tell(result, show, json)


def placement(
    nodes: Annotated[int, typer.Option(metavar="N", help="Number of nodes with known coordinates.")] = 2000,
    operators: Annotated[int, typer.Option(metavar="K", help="Operators to place in each query, joins in a tree.")] = 12,
    queries: Annotated[int, typer.Option(metavar="Q", help="Queries to place.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of nodes and queries.")] = 1,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Show how long it takes to place a query by coordinates alone, how long their index takes to build, and the peak memory."""
    from sbon_testbed.bench.placement import measure, show

    result = measure(nodes, operators, queries, seed)
    _tell(result, show, json, wide=wide)


def telemetry(
    agents: Annotated[int, typer.Option(metavar="N", help="Number of agents in the overlay.")] = 16,
    queries: Annotated[int, typer.Option(metavar="Q", help="Number of queries, each over all agents.")] = 4,
    seconds: Annotated[float, typer.Option(metavar="S", help="Virtual seconds to measure.")] = 120.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of network and agents.")] = 1,
    json: Json = False,
) -> None:
    """Show the share of a processor core that an agent's telemetry takes."""
    from sbon_testbed.bench.telemetry import measure, show

    result = measure(agents, queries, seconds, seed, _progress)
    _tell(result, show, json)


def engine(
    workload: Annotated[
        list[str] | None, typer.Option(metavar="W1|W2|W3", help="Only these: W1 filter, W2 window, W3 join.", show_default=False)
    ] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="How long each measurement takes, after warming up.")] = 10.0,
    runs: Annotated[int, typer.Option(metavar="N", help="Runs of each measurement; rates are medians, percentiles are over all rows.")] = 1,
    rows: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="Origin of rows: fresh (generated), pool (a million rows, repeated), csv, csv-iso, ndjson, parquet, tcp, http.",
        ),
    ] = "fresh",
    instances: Annotated[int, typer.Option(metavar="N", help="Instances of each operator with keys.")] = 1,
    stalled: Annotated[
        float | None,
        typer.Option(metavar="S", help="Only watch the memory of an agent whose sink is blocked, for S seconds.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Show how many rows one agent processes, how soon answers reach the sink, and how late its event loop runs under load."""
    from sbon_testbed.bench import engine, engine_stalled

    if stalled is not None:
        result = engine_stalled.measure(stalled, _progress)
    else:
        result = engine.measure(workload or [], seconds, runs, _progress, rows=rows, instances=instances)
    _tell(result, (engine_stalled if stalled is not None else engine).show, json)
    if not all(one["answers_equal"] for one in result.get("workloads", {}).values()):
        raise typer.Exit(1)


def link(
    seconds: Annotated[float, typer.Option(metavar="S", help="How long each measurement takes, after warming up.")] = 5.0,
    runs: Annotated[int, typer.Option(metavar="N", help="Number of runs; figures are medians over runs.")] = 1,
    json: Json = False,
) -> None:
    """Show how many rows a sealed link between two agents carries, and how soon rows arrive."""
    from sbon_testbed.bench.link import measure, show

    result = measure(seconds, runs, _progress)
    _tell(result, show, json)


def outage(
    seconds: Annotated[float, typer.Option(metavar="S", help="Seconds for which the far end is stopped.")] = 20.0,
    rate: Annotated[int, typer.Option(metavar="N", help="Rows of 24 bytes a second.")] = 100_000,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Show that a stopped far end loses no row and costs no memory, and how soon it catches up."""
    from sbon_testbed.bench.outage import measure, show

    result = measure(seconds, rate, _progress)
    _tell(result, show, json, wide=wide)


def recovery(
    kills: Annotated[int, typer.Option(metavar="N", help="Number of hosts to kill, one after the other.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of latencies, of hosts to kill, and of times.")] = 1,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Show how soon queries give correct rows again after one of their hosts is killed. Takes about 15 s for each kill."""
    from sbon_testbed.bench.recovery import measure, show

    result = measure(kills, seed, _progress)
    _tell(result, show, json, wide=wide)


def calm(
    rows: Annotated[int, typer.Option(metavar="N", help="Number of rows in each run.")] = 50_000_000,
    runs: Annotated[int, typer.Option(metavar="R", help="Pairs of runs, with recovery and without; ratios are medians.")] = 9,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Show what recovery costs while nothing fails: bytes between agents, and throughput."""
    from sbon_testbed.bench.calm import measure, show

    _tell(measure(rows, runs, _progress), show, json, wide=wide)


def nexmark(
    query: Annotated[
        list[str] | None, typer.Option(metavar="qN", help="Only these; q12 and q13 have no equivalent.", show_default=False)
    ] = None,
    events: Annotated[int, typer.Option(metavar="N", help="Events of each timed run; all kinds count.")] = 20_000_000,
    runs: Annotated[int, typer.Option(metavar="R", help="Timed runs of each query; figures are their medians.")] = 1,
    instances: Annotated[int, typer.Option(metavar="N", help="Instances of each operator with keys.")] = 1,
    json: Json = False,
) -> None:
    """Show how many events a second one agent processes with the queries of Nexmark, and whether their answers are right."""
    from sbon_testbed.nexmark.bench import measure, show

    result = measure(query or [], events, runs, _progress, instances=instances)
    _tell(result, show, json)
    if not all(one["answers_equal"] for one in result["queries"].values()):
        raise typer.Exit(1)


def input_(
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Only these sources: fresh, csv, csv-iso, ndjson, parquet, tcp, http, mqtt.", show_default=False),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(metavar="W1|W2|W3", help="Only these: W1 filter, W2 window, W3 join.", show_default=False)
    ] = None,
    sink: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Only these sinks: discard, parquet, csv, ndjson.", show_default=False)
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", help="Rows of a run.")] = 4_000_000,
    runs: Annotated[int, typer.Option(metavar="R", help="Runs of each; figures are their medians.")] = 1,
    json: JsonFile = None,
) -> None:
    """Show one agent's rows a second for each source, workload and sink, beside polars and cat that read the same bytes."""
    from sbon_testbed.bench.input import measure, show

    result = measure(source or [], workload or [], sink or [], rows, runs, _progress)
    if json is not None:
        write_json(json, result)
    if json != "-":
        show(result)
    if not all(one["answers_equal"] for one in result["figures"]):
        raise typer.Exit(1)


def peers(
    flink: Annotated[
        str, typer.Option("--flink", metavar="PYTHON", help="A Python with Flink: pip install apache-flink into a new venv.")
    ] = "",
    workload: Annotated[
        list[str] | None, typer.Option(metavar="W1|W2|W3", help="Only these: W1 filter, W2 window, W3 join.", show_default=False)
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="csv|generated", help="Only this origin of rows: files, or generated by each engine.", show_default=False),
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", help="Rows of a run; more if the run would be too short.")] = 8_000_000,
    runs: Annotated[int, typer.Option(metavar="R", help="Runs of each engine, in turn; figures are their medians.")] = 3,
    json: Json = False,
) -> None:
    """Run sbon and Flink SQL in turn, with the same queries and files, and show how many times as fast sbon is."""
    from sbon_testbed.bench.peers import measure, show

    result = measure(flink, workload or [], source or [], rows, runs, _progress)
    _tell(result, show, json)
    if not all(right for one in result["figures"] for right in one["answers_equal"].values()):
        raise typer.Exit(1)


def migrate(
    states: Annotated[str, typer.Option(metavar="SIZES", help="Sizes of the operator's state, separated by commas.")] = "1KB,1MB,100MB",
    rtt: Annotated[str, typer.Option(metavar="MS", help="Round trips between any two agents, separated by commas.")] = "0,100",
    runs: Annotated[int, typer.Option(metavar="N", help="Migrations for each size of state; figures are medians.")] = 5,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Show for how long nothing arrives at a sink while a join of 10,000 rows/s moves to another agent with its state."""
    from sbon_testbed.bench.migrate import measure, show

    result = measure(states.split(","), rtt.split(","), runs, _progress)
    _tell(result, show, json, wide=wide)


def state(
    keys: Annotated[int, typer.Option(min=1_000, metavar="N", help="Number of keys, each with a state.")] = 10_000_000,
    share: Annotated[float, typer.Option(min=0.001, max=1, metavar="PART", help="Share of the states that memory holds.")] = 0.1,
    rows: Annotated[int, typer.Option(min=1_000, metavar="N", help="Number of rows; keys follow Zipf's law with exponent 1.")] = 4_000_000,
    batch: Annotated[int, typer.Option(min=100, max=1_000_000, metavar="N", help="Rows of a batch.")] = 16_384,
    key: Annotated[str, typer.Option(metavar="int|text", help="Type of the keys; texts have 13 characters.")] = "int",
    store: Annotated[
        list[str] | None, typer.Option(metavar="runs|lmdb|rocksdb|memory", help="Only these stores.", show_default=False)
    ] = None,
    folder: Annotated[str, typer.Option(metavar="FOLDER", help="Folder for the files; a temporary folder by default.")] = "",
    json: Json = False,
) -> None:
    """Show how many rows a second a store of keyed states processes when most states are on disk, and how much memory it uses."""
    import os

    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # as agents have it
    from sbon_testbed.bench.state import STORES, measure, show

    wrong = [name for name in store or [] if name not in STORES]
    if wrong or key not in ("int", "text"):
        raise typer.BadParameter(f"{(wrong or [key])[0]!r}, expected one of {', '.join(STORES)} for --store, int or text for --key")
    result = measure(keys, share, rows, batch, key, store or list(STORES), _progress, folder)
    _tell(result, show, json)


def disk(
    keys: Annotated[int, typer.Option(min=1_000, metavar="N", help="Number of keys.")] = 10_000_000,
    rows: Annotated[int, typer.Option(min=1_000, metavar="N", help="Number of rows; keys follow Zipf's law with exponent 1.")] = 2_000_000,
    batch: Annotated[int, typer.Option(min=100, max=1_000_000, metavar="N", help="Rows of a batch.")] = 16_384,
    key: Annotated[str, typer.Option(metavar="int|text", help="Type of the keys; texts have 13 characters.")] = "int",
    operator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only these operators: tumbling, hopping, sessions, short sessions, deduplication.", show_default=False
        ),
    ] = None,
    budget: Annotated[
        list[float] | None, typer.Option(metavar="MB", help="Memory for the state; may be repeated. Default: 80 and 200 MB.")
    ] = None,
    folder: Annotated[str, typer.Option(metavar="FOLDER", help="Folder for the files; a temporary folder by default.")] = "",
    json: Json = False,
) -> None:
    """Show how many rows a second windows, sessions and deduplication process with most of their state on disk, and their memory."""
    import os

    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # as agents have it
    from sbon_testbed.bench.disk import OPERATORS, measure, show

    wrong = [name for name in operator or [] if name not in OPERATORS]
    if wrong or key not in ("int", "text"):
        raise typer.BadParameter(f"{(wrong or [key])[0]!r}, expected one of {', '.join(OPERATORS)} for --operator, int or text for --key")
    _tell(measure(keys, rows, batch, key, operator or list(OPERATORS), budget or [80.0, 200.0], _progress, folder), show, json)


def match(
    rows: Annotated[int, typer.Option(min=100_000, metavar="N", help="Rows for each pattern.")] = 2_000_000,
    batch: Annotated[int, typer.Option(min=1_000, max=1_000_000, metavar="N", help="Rows of a batch.")] = 65_536,
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only patterns with this in their names.")] = "",
    json: Json = False,
) -> None:
    """Show how many rows a second MATCH_RECOGNIZE processes on two cores, and the memory that an open start needs."""
    import os

    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # as agents have it
    from sbon_testbed.bench.match import ONE_KEY, WORKLOADS, measure, show

    names = [name for name in (*WORKLOADS, ONE_KEY) if only in name]
    if not names:
        known = ", ".join((*WORKLOADS, ONE_KEY))
        raise typer.BadParameter(f"no pattern has {only!r} in its name: there are {known}", param_hint="--only")
    _tell(measure(rows, batch, names, _progress), show, json)


def operators(
    rows: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Rows of a batch; may be repeated. Default: 1,000, 8,192 and 65,536.")
    ] = None,
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only workloads with this in their names.")] = "",
    seconds: Annotated[float, typer.Option(metavar="S", help="Processor time to spend on each figure.")] = 1.0,
    json: Json = False,
) -> None:
    """Show how many rows a second each operator processes on one core, by batch size."""
    import os

    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # as agents have it
    from sbon_testbed.bench.operators import ROWS_MAX, SECONDS_MIN, SIZES, WORKLOADS, measure, show
    from sbon_testbed.ranges import check_seconds

    names = [name for name in WORKLOADS if only in name]
    if not names:
        raise typer.BadParameter(f"no workload has {only!r} in its name: there are {', '.join(WORKLOADS)}", param_hint="--only")
    check_seconds("--seconds", seconds, SECONDS_MIN)
    if rows and not 1 <= min(rows) <= max(rows) <= ROWS_MAX:
        raise typer.BadParameter(f"expected 1 to {ROWS_MAX} rows in a batch", param_hint="--rows")
    result = measure(rows or SIZES, seconds, names, _progress)
    _tell(result, show, json)


def costs(
    part: Annotated[
        list[str] | None, typer.Option(metavar="PART", help="Only these parts: law, process, accounting, flow.", show_default=False)
    ] = None,
    only: Annotated[str, typer.Option(metavar="TEXT", help="law: only operators with this in their names.")] = "",
    seconds: Annotated[float, typer.Option(metavar="S", help="How long each measurement takes.")] = 2.0,
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="accounting: number of pairs of runs.")] = 10,
    json: Json = False,
) -> None:
    """Show how well the costs of operators are predicted, for batches and for whole processes, and what the accounting costs."""
    import os

    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # as agents have it
    from sbon_testbed.bench.costs import measure, show

    _tell(measure(part or [], seconds, runs, _progress, only), show, json)


def closing(
    keys: Annotated[int, typer.Option(metavar="N", min=1, max=100_000_000, help="Different keys in the window.")] = 1_000_000,
    json: Json = False,
) -> None:
    """Show how long an operator keeps a thread when a window of many keys closes."""
    import os

    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # as agents have it
    from sbon_testbed.bench.closing import measure, show

    _tell(measure(keys, _progress), show, json)
