"""Every table that a command prints, on narrow terminals: ids and titles stay whole, no line is longer than the terminal."""

import ast
import inspect
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console, Group

from sbon.cli.__main__ import run
from sbon.cli.output import print_table
from sbon.cli.tables import display_width, plain
from sbon.cli.top import screen
from sbon_agent.control import ControlConfig
from sbon_testbed import cli as testbed_cli
from sbon_testbed.bench import (
    calm,
    closing,
    costs,
    disk,
    engine,
    engine_stalled,
    link,
    match,
    migrate,
    operators,
    outage,
    peers,
    placement,
    probe,
    recovery,
    state,
    telemetry,
)
from sbon_testbed.bench import input as input_
from sbon_testbed.cep import command as cep
from sbon_testbed.coordinates import adversaries
from sbon_testbed.coordinates import command as coordinates
from sbon_testbed.deadlines import command as deadlines
from sbon_testbed.demo import view
from sbon_testbed.documents import print_document
from sbon_testbed.mace import command as mace
from sbon_testbed.membership import command as membership
from sbon_testbed.netns import bench as netns
from sbon_testbed.nexmark import bench as nexmark
from sbon_testbed.placement import command as placement_command
from sbon_testbed.throughput import command as throughput
from sbon_testbed.topology import Topology
from tests.canned_agent import PLAN, STATUS, FakeAgent, serving

NODE, OTHER = "frankfurt-machine-01", "amsterdam-machine-07"
QUERY = f"{NODE}.k3x9zq1.12"
OPERATOR, NEXT = f"{QUERY}.4", f"{QUERY}.15"
SQL = "SELECT window_start, symbol, AVG(price) AS price FROM TUMBLE(trades, ts, INTERVAL '5 seconds') WHERE volume > 500 " * 3
LABELS = {"region": "europe-central", "site": "frankfurt", "rack": "r17", "owner": "trading"}
COORDINATE = {"vector": [-123.4, 98.7, 12.3], "height_ms": 123.4, "error": 0.123, "load_ms": 1234.5}
MEMBERS = [
    {"name": name, "address": "192.168.100.101:65535", "status": "suspect", "labels": LABELS, "coordinate": COORDINATE}
    | {"estimated_rtt_ms": 1234.5, "measured_rtt_ms": 1233.9}
    for name in (NODE, OTHER)
]
OPERATORS = [
    {
        **{
            "id": name,
            "kind": "deduplicate",
            "text": SQL,
            "node": NODE,
            "state": "stalled",
            "reason": f"64 batches wait for {NEXT} on {OTHER}",
        },
        **{"rows_per_s_in": 123_456.7, "rows_per_s_out": 123_456.7, "bytes_per_s_out": 123e6, "queue_batches": 1234, "late_rows": 123_456},
        **{"dropped_rows": 1234, "state_rows": 12_345_678, "state_bytes": 1e9, "migrations": 17, "cpu_ns_per_row": 12_345.6},
        "latency": {"p99_ms": 12_345.6},
    }
    for name in (OPERATOR, NEXT)
]
QUERIES = [
    {
        **{"id": QUERY, "name": QUERY, "state": "degraded", "reason": f"{OPERATOR} was on {OTHER}, which failed", "sql": SQL},
        **{"sink_node": NODE, "rows_out": 1_234_567_890, "late_rows": 123_456, "dropped_rows": 1234, "network_usage": 123e3},
        "operators": [{"id": OPERATOR, "node": name, "pinned": False, "lost": name == OTHER} for name in (NODE, OTHER)],
    }
]
EXPLAINED: dict[str, Any] = {
    **{"query": QUERY, "network_usage": PLAN["network_usage"], "notes": [f"coordinates of {OTHER} have not settled yet"], "delay_ms": 1.0},
    "operators": [
        {
            **{"id": name, "kind": "deduplicate", "text": SQL, "node": NODE, "pinned": False, "reuse": None},
            "candidates": [{"node": node, "network_usage": 123e3, "load_ms": 1234.5} for node in (NODE, OTHER)],
        }
        for name in (OPERATOR, NEXT)
    ],
    "links": [
        {**{"id": "1", "source": OPERATOR, "target": NEXT, "rate_rows_per_s": 123_456.7, "rate_bytes_per_s": 12e6, "latency_ms": 1234.5}}
        | {"latency_measured": False}
    ],
    "recovery": {
        **{"heals": True, "detection_s": [2.6, 5.9], "detection": "a probe every 0.6 s", "after_s": 30.0, "windows": "leave_out"},
        "hosts": [
            {**{"node": NODE, "is_home": False, "moves": [OPERATOR], "waits": [NEXT], "states_lost": [OPERATOR]}}
            | {"elsewhere_s": [32.6, 36.9], "there_s": [0.4, 0.8]}
        ],
    },
}
KEYS = {
    "nodes": [
        {**{"node": name, "status": "suspect", "primary": "1f2e3d4c", "ids": ["1f2e3d4c", "5a6b7c8d", "9e0f1a2b"]}, "left_out": True}
        | {"error": f"{name} cannot write /var/lib/sbon/cluster.key: read-only file system; copy the file by hand"}
        for name in (NODE, OTHER)
    ],
    "problem": None,
}
NAMES = [{"name": "prices_of_the_last_hour_by_symbol", "kind": "sink", "owner": NODE, "query": QUERY}]
CALL = "nearest_station(lat, lon, radius)"
FUNCTIONS = [
    {"call": CALL, "version": "12.10.3", "gives": "station TEXT, distance_m FLOAT, bearing FLOAT, at TIMESTAMP", "problem": "no numpy"}
]
SHOWN = {
    "columns": ["query", "name", "state", "sink at", "reason"],
    "rows": [{"query": QUERY, "name": QUERY, "state": "degraded", "sink at": NODE, "reason": f"{NEXT} was on {OTHER}, which failed"}],
}
SOURCES = {
    "columns": ["name", "connector", "nodes"],
    "rows": [{"name": "trades", "connector": "datagen", "nodes": f"{NODE}, " * 9 + OTHER}],
}
SUBMITTED = [
    {"message": f"follow it with: sbon tail {QUERY}", "operators": [{**one, "reused": True} for one in EXPLAINED["operators"]]},
    SHOWN,
    SOURCES,
]
LATE = (98_765.4, None)
ANSWERS = {
    **{"status": {**STATUS, "name": NODE, "labels": LABELS, "coordinate": COORDINATE}, "members": MEMBERS, "operators": OPERATORS},
    **{"queries": QUERIES, "names": NAMES, "functions": FUNCTIONS, "explain": EXPLAINED, "keys": KEYS, "submit": SUBMITTED},
    "plan": {"text": "worst 212 ms", "intervals": {"width_s": 1.0, "latest_ms": LATE, "mace_ms": LATE, "upper_ms": LATE}, "notes": []},
}

MEMBER_TITLES = ["name", "status", "rtt ms", "estimated ms", "labels"]
OPERATOR_TITLES = ["operator", "state", "rows/s in", "what it does"]
QUERY_TITLES = ["query", "state", "rows out", "sql"]
PLAN_TITLES = ["operator", "node", "what it does"]
LINK_TITLES = ["from", "to"]
CRASH_TITLES = ["host", "operators", "run again", "lost"]
CANDIDATE_TITLES = ["operator", "candidate", "in transit", "load ms"]

AGENT_TABLES: list[tuple[list[str], list[list[str]], list[str]]] = [
    (["status"], [], [NODE, STATUS["address"], STATUS["data_dir"]]),
    (["members"], [MEMBER_TITLES], [NODE, OTHER]),
    (["members", "--wide"], [], [NODE, OTHER, MEMBERS[0]["address"]]),
    (["operators"], [OPERATOR_TITLES], [OPERATOR, NEXT, OTHER]),
    (["operators", "--wide"], [], [OPERATOR, NEXT, OTHER]),
    (["queries"], [QUERY_TITLES], [QUERY, OPERATOR, OTHER]),
    (["queries", "--wide"], [], [QUERY, NODE, f"{OTHER}(lost)"]),
    (["names"], [["name", "kind", "created at"]], [NAMES[0]["name"]]),
    (["names", "--wide"], [], [NAMES[0]["name"], NODE, QUERY]),
    (["functions"], [["call", "version", "gives"]], CALL.split()),
    (["coordinates"], [["name", "region", "x ms", "y ms", "height ms", "error", "load ms"]], [NODE, OTHER]),
    (["keys", "list"], [["node", "status", "seals with", "also opens"]], [NODE, OTHER, "1f2e3d4c", "5a6b7c8d", "9e0f1a2b"]),
    (
        ["explain", "--candidates", "-c", "SELECT 1"],
        [PLAN_TITLES, CANDIDATE_TITLES, LINK_TITLES, CRASH_TITLES],
        [OPERATOR, NEXT, NODE, OTHER],
    ),
    (
        ["sql", "-c", "SELECT 1"],
        [["operator", "kind", "node", "reused"], ["query", "name", "state", "reason"], ["name", "connector", "nodes"]],
        [OPERATOR, NEXT, NODE, QUERY],
    ),
    (["plan", "latency", "--arrivals", os.devnull, "-c", "SELECT 1"], [["second", "latest ms", "Mace ms", "bound ms"]], []),
    (["top", "--once"], [QUERY_TITLES, OPERATOR_TITLES, MEMBER_TITLES], [QUERY, OPERATOR, NEXT, OTHER]),
]
"""Arguments, the titles of each table at 80 columns, and words that stay whole there and on narrower terminals."""

LARGE = defaultdict(lambda: 98_765.4)
LARGE_BY = dict.fromkeys(("mace_hc", "ours", "corr", "random", "baseline"), LARGE)
"""A result with every figure."""
SIZES = {"1000": 98_765_432.1, "8192": 98_765_432.1, "65536": 98_765_432.1}
RECOVERY_FIGURES = ("start_s", "windows_with_fewer_rows", "windows_repeated")
CALM_COUNTS = dict.fromkeys(("rows", "runs", "rows_per_s", "rows_per_s_without"), 98_765_432)
OUTAGE_TITLES = ["outage s", "rows", "lost", "MiB on disk", "caught up in s", "MB at most", "MB before"]
ENGINE = {"workloads": {"W1": LARGE, "W2": LARGE}, "latency": {"W1": LARGE}, "loop_lag": LARGE}
BUSY = {"rows_per_s": 98_765_432, "cores_used": 1.98}
PEERS = {"sbon": BUSY, "flink": BUSY, "ratio": 12.34, "ratio_per_cpu_s": 12.34, "answers_equal": {"sbon": True, "flink": True}}
INPUT = defaultdict(LARGE.default_factory, source="csv-iso", workload="W1", sink="discard", rows_per_s=98_765_432)
RESTED = {"idle": LARGE, "slow": LARGE, "formation": LARGE, "half_restarted": LARGE, "partition": LARGE, "lower_incarnation": LARGE}
STICK = {"p10": 123.45, "p25": 123.45, "p50": 123.45, "p75": 123.45, "p90": 123.45, "below_1": 1.0}
STICK_TITLES = ["p10", "p25", "p50", "p75", "p90", "below 1"]
DEALT = {"events_sent": 98_765_432.1, "saved": -0.1234, "peak_s": 98.765, "over_bound": 0.98765, "decision_us": 98_765.4}
DEALT_ON_AGENT = {**DEALT, "predicted_peak_s": 98_765.4, "load_after": 98.7, "virtual": {"round-robin": DEALT, "one-copy": DEALT}}
ORDERS = {"select first": 98.765, "select second": 98.765, "select last": 98.765}
QUERY_MEASURED = {
    **{"measured_s": 98.7654, "predicted_s": 98.7654, "upper_s": 98.7654},
    **{"error": 9.876, "p99_error": 9.876, "mean_error": 9.876},
}
LATENCIES = {"mean_s": 98.7654, "p99_s": 98.7654}
MODELLED = {"load": 0.95, "predicted": LATENCIES, "measured": LATENCIES, "error": {"mean": 9.876, "p99": -0.876}}
RULE = {
    **{"rate": 98_765.4, "bound_s": 0.5, "settings": {"1000-1000": 98.7654, "200--": None}, "gain": 9.876},
    **{"planned": {"maps": 16, "updates": 16, "exchange_s": 9.8765, "poll_s": 9.8765, "mean_s": 98.7654, "rate_measured_max": 98_765.4}},
    "rates_max": {"1000-1000": 98_765.4},
}
IN_TIME = dict.fromkeys(("load", "none", "batch_edf", "dover", "tree", "cells", "bound", "of_bound"), 0.9876)
SHARES = defaultdict(lambda: 0.9876)
"""A result whose every figure is a share."""

RESULT_TABLES: dict[str, tuple[Callable[..., None], dict[str, Any], list[list[str]]]] = {
    "engine": (
        engine.show,
        ENGINE,
        [
            ["workload", "rows/s", "rows/s/core", "cores used", "peak MB", "quantum ms", "answers"],
            ["latency, lag", "median ms", "p99 ms", "samples", "cores used"],
        ],
    ),
    "engine --stalled": (
        engine_stalled.show,
        {"stalled": LARGE},
        [["seconds", "first MB", "last MB", "most MB", "rows taken", "cores used"]],
    ),
    "input": (
        input_.show,
        {"figures": [INPUT]},
        [["source", "workload", "sink", "rows/s", "rows/core s", "cores", "answers"]],
    ),
    "peers": (
        peers.show,
        {"figures": [{"workload": "W1", "source": "generated", **PEERS}]},
        [["workload", "source", "sbon rows/s", "cores", "Flink rows/s", "cores", "ratio", "answers"]],
    ),
    "link": (link.show, {}, [["way", "rows/s", "MiB/s", "CPU cores", "p50 ms", "p99 ms"]]),
    "migrate": (
        migrate.show,
        {"states": {"100MB": LARGE}, "rtt_100ms": {"states": {"100MB": LARGE}}},
        [["RTT ms", "state", "sent MB", "copied in s", "pause ms", "steady gap ms", "as told ms", "rounds"]],
    ),
    "migrate --wide": (partial(migrate.show, wide=True), {"states": {"100MB": LARGE}}, []),
    "outage": (outage.show, {"outage": LARGE}, [OUTAGE_TITLES]),
    "outage --wide": (partial(outage.show, wide=True), {"outage": LARGE}, []),
    "bench calm": (
        calm.show,
        {"calm": dict.fromkeys(("idle_bytes_per_s", "query_bytes_per_s", "throughput_ratio", "cpu_ratio"), 98_765.4) | CALM_COUNTS},
        [["what recovery costs", "measured", "goal"]],
    ),
    "bench recovery": (
        recovery.show,
        {"recovery": {"kills": 100, "movable": LARGE, "pinned": LARGE, "owner": LARGE, **dict.fromkeys(RECOVERY_FIGURES, 98_765.4)}},
        [["killed", "times", "median s", "p99 s", "at most s"]],
    ),
    "disk": (
        disk.show,
        {"runs": [defaultdict(LARGE.default_factory, {"operator": "deduplication"})]},
        [["operator", "budget MB", "MB", "new keys/s", "rows/s", "with end/s", "step ms"]],
    ),
    "bench placement": (placement.show, {}, [["nodes", "operators", "queries", "median ms", "p99 ms", "index s", "median CPU ms"]]),
    "bench placement --wide": (partial(placement.show, wide=True), {}, []),
    "probe": (probe.show, {"idle": LARGE, "saturated": LARGE}, [["agents", "median ms", "p99 ms", "probes", "CPU", "rows/s"]]),
    "bench telemetry": (telemetry.show, {}, []),
    "closing": (
        closing.show,
        {"closing": dict.fromkeys(closing.WORKLOADS, LARGE)},
        [["workload", "rows", "steps", "longest ms", "all ms"]],
    ),
    "costs": (
        costs.show,
        {
            "flow": LARGE,
            "law": {"operators": dict.fromkeys(operators.WORKLOADS, LARGE | {"error": dict.fromkeys(SIZES, 0.1234)})},
            "process": dict.fromkeys(("W1", "network, receiver"), LARGE),
            "accounting": LARGE,
        },
        [
            ["% off, by rows", "1,000", "8,192", "65,536", "median", "two halves"],
            ["process", "CPU s", "operators", "loop", "threads", "off"],
        ],
    ),
    "operators": (
        operators.show,
        {
            "rows_per_s_per_core": dict.fromkeys(operators.WORKLOADS, SIZES),
            "prediction_error": dict.fromkeys(operators.WORKLOADS, dict.fromkeys(SIZES, 0.1234)),
        },
        [["rows a batch", "1,000", "8,192", "65,536", "CPU off by"]],
    ),
    "wan": (
        netns.show,
        {"delays": [LARGE], "loads": [LARGE]},
        [["asked ms", "median ms", "p99 ms", "packets"], ["sent/s", "delivered/s", "not read", "late ms", "p99 ms", "router's CPU"]],
    ),
    "nexmark": (
        nexmark.show,
        {
            "events": 20_000_000,
            "queries": {"q11": LARGE},
            "missing": {"q12": "its windows go by the clock of the machine, and windows here by the times in the rows"},
        },
        [["query", "events read", "events/s", "events/s/core", "cores used", "answers"]],
    ),
    "placement": (
        placement_command.show,
        {"strategies": {"relaxation-multicast": LARGE}},
        [["strategy", "usage +", "80th pct", "together", "delay +", "probes"]],
    ),
    "coordinates": (
        coordinates.show,
        {"warmup": {"100": LARGE}, "against_median": LARGE, "probed": LARGE, "unprobed": LARGE},
        [["how far off", "median", "p90", "median ms"]],
    ),
    "adversaries": (adversaries.show, {"honest": LARGE, "attacks": {"oscillation": LARGE}}, [["honest pairs", "median", "p90", "ratio"]]),
    "membership": (membership.show, RESTED, []),
    "mace placement": (
        mace.show_placement,
        {"20": {"nodes": 400, "operators": 4000, **LARGE_BY, "spread_evenly_s": 4.27, "move_cpu_us": 49.5}},
        [["operators", "Mace-HC", "ours", "Corr", "Random", "Baseline", "even", "move us"]],
    ),
    "mace training": (
        partial(mace.show_worst, "training", "events"),
        {"75000": LARGE},
        [["events", "measured s", "predicted s", "Mace s", "bound s", "error"]],
    ),
    "mace plans": (
        mace.show_plans,
        {"best": "select second", "measured_s": ORDERS, "samples": {"75000": {"predicted_s": ORDERS, "chosen": "select second"}}},
        [["events", "select first s", "select second s", "select last s", "chosen"]],
    ),
    "mace agents": (
        partial(mace.show_agents, 12),
        {"backend": "real", "each": [QUERY_MEASURED, {**QUERY_MEASURED, "upper_s": None}]},
        [["query", "measured ms", "predicted ms", "bound ms", "error", "of 99 %", "of mean"]],
    ),
    "match": (
        match.show,
        {"patterns": {"skip to next row": LARGE}, "one_key": LARGE},
        [["pattern", "rows/s", "aim", "of aim", "matches"]],
    ),
    "state": (
        state.show,
        {"stores": {"runs": LARGE}},
        [["store", "new keys/s", "rows/s", "missed", "MB", "budget", "disk MB", "slowest ms"]],
    ),
    "cep peaks": (
        partial(cep.show, "peaks"),
        {"traffic": [LARGE], "faces": [LARGE]},
        [["row", "peak_s", "paper_peak_s", "feedback_s", "paper_feedback_s"]],
    ),
    "cep reactive": (partial(cep.show, "reactive"), {"12.5": LARGE}, [["scope s", "peak s", "over bound"]]),
    "cep gains": (
        partial(cep.show, "gains"),
        {"traffic": {"1024": {"negative": STICK, "positive": STICK}}},
        [["operator", "bins", "gain", *STICK_TITLES]],
    ),
    "cep prediction": (partial(cep.show, "prediction"), {"0.25": STICK}, [["alpha", *STICK_TITLES]]),
    "cep scaling": (
        partial(cep.show, "scaling"),
        {"decision_us": SIZES, "statistics_ms": SIZES},
        [["bins", "decision us"], ["rows", "statistics ms"]],
    ),
    "cep bounds": (
        partial(cep.show_bounds, "traffic-steps"),
        {"0.25": {"known-future": DEALT}},
        [["bound s", "dealer", "sent", "saved", "worst peak s", "over ppm", "decision us"]],
    ),
    "cep engine": (
        partial(cep.show_engine, "faces"),
        {"rows": 98_765_432, "instances": 8, "speed": 20, "bounds": {"0.25": DEALT_ON_AGENT}},
        [["bound s", "dealer", "sent", "saved", "peak s", "late", "predicted s", "load"]],
    ),
    "deadlines model": (
        partial(deadlines.show_model, summary=LARGE),
        {"windows-exchange_s=0.05": MODELLED},
        [["run", "load", "mean", "seen", "p99", "seen", "error", "of p99"]],
    ),
    "deadlines rules": (deadlines.show_rules, {"windows": RULE}, [["exchange-poll", "mean s"]]),
    "deadlines policies": (
        partial(deadlines.show_policies, "memory", "MB for states"),
        {"123.5": {**IN_TIME, "burst": IN_TIME}},
        [["MB for states", "load", "none", "batch edf", "dover", "tree", "cells", "bound", "of bound"]],
    ),
    "deadlines agents": (
        deadlines.show_agents,
        {
            "1.5": {
                **dict.fromkeys(("load", "finish", "shed", "defer", "bound", "of_bound"), 0.975),
                "shed_left_out": 1_234_567,
                "defer_left_out": 1_234_567,
            }
        },
        [["M rows/s", "load", "finish", "shed", "defer", "bound", "of bound", "rows shed", "deferred"]],
    ),
    "deadlines agents, disk": (
        deadlines.show_agents_disk,
        {"shed_fairness 0.8": {"in_time": 0.975, "rows": 1_234_567, "shed_rows": [1_234_567, 1_234_567]}},
        [["on_miss", "in time", "in memory", "on disk"]],
    ),
    "throughput small": (
        partial(throughput.show_small, queries=100),
        {"two_phase_exhaustive": SHARES},
        [["search", "optimal", "10th percentile", "worst"]],
    ),
    "throughput large": (
        partial(throughput.show_large, times={"two_phase_exhaustive": LARGE, "random": LARGE}, queries=50),
        {"two_phase_exhaustive": SHARES},
        [["search", "better", "same", "worse", "median", "mean ms", "p99 ms", "tried/s"]],
    ),
    "throughput mixed": (
        throughput.show_mixed,
        {"queries": 20, "two_phase": SHARES, "greedy": {"carried": 0.0, "usage_above_p50": None, "usage_above_worst": None}},
        [["search", "carried", "median", "worst"]],
    ),
    "throughput sustained": (
        throughput.show_sustained,
        {"plans": 200, "flat": 150, "blocked": 199, "binding_full": 98, "rests_on_rules": 0},
        [["what should hold", "plans"]],
    ),
    "throughput engine": (
        throughput.show_engine,
        {
            name: {
                "rows_per_s_per_stream": rate,
                "predicted": rate,
                "error": -0.02,
                "error_then": -0.01,
                "binding": "one core, operators b.1.3, b.1.4 on node b",
                "sustained": {"flat": True, "blocked": True, "binding_full": False, "had_its_cores": True},
            }
            for name, rate in (("initial", 72_191), ("optimised", 1_364_722))
        }
        | {"ratio": 18.9},
        [["configuration", "rows/s/stream", "predicted", "error", "error then", "flat", "held up", "full"]],
    ),
}
"""Functions that print results of benchmarks and evaluations, each with a result and the titles of its tables at 80 columns."""


@pytest.fixture
def terminal(capsys, monkeypatch):
    """Makes standard output a terminal of a given width while a function runs; returns the printed lines, without colours."""

    def lines(width: int, function: Callable[..., Any], *arguments: Any) -> list[str]:
        with monkeypatch.context() as patched:
            patched.setattr(sys.stdout, "isatty", lambda: True)
            patched.setenv("TERM", "xterm")
            patched.setenv("COLUMNS", str(width))
            assert function(*arguments) in (0, None)
        return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()

    return lines


@pytest.fixture
def agent(tmp_path, monkeypatch):
    fake = FakeAgent()
    fake.answers.update(ANSWERS)
    with serving(tmp_path, fake, ControlConfig()) as server:
        monkeypatch.setenv("SBON_SOCKET", str(server.path))
        yield fake


def titles(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def check(lines: list[str], width: int, heads: list[list[str]], whole: list[str]) -> None:
    assert [line for line in lines if display_width(line) > width] == []
    found = [titles(line) for line in lines]
    assert [head for head in heads if head not in found] == []
    words = {word.strip(":,") for line in lines for word in line.split()}
    assert [word for word in whole if word.strip(",") not in words] == []


@pytest.mark.parametrize(("arguments", "heads", "whole"), AGENT_TABLES, ids=[" ".join(one[0][:2]) for one in AGENT_TABLES])
def test_tables_of_an_agent_fit_80_columns_and_keep_ids_and_titles_whole(agent, terminal, arguments, heads, whole):
    check(terminal(80, run, arguments), 80, heads, whole)


@pytest.mark.parametrize("name", RESULT_TABLES)
def test_tables_of_results_fit_80_columns_and_keep_titles_whole(terminal, name):
    show, result, heads = RESULT_TABLES[name]
    check(terminal(80, show, defaultdict(LARGE.default_factory, result)), 80, heads, [])


def test_tables_fit_60_columns_too(agent, terminal):
    for arguments, _, whole in AGENT_TABLES:
        check(terminal(60, run, arguments), 60, [], whole)
    for show, result, _ in RESULT_TABLES.values():
        check(terminal(60, show, defaultdict(LARGE.default_factory, result)), 60, [], [])


@pytest.mark.parametrize("width", [1, 20])
def test_no_terminal_is_too_narrow(agent, terminal, width):
    for arguments, _, whole in AGENT_TABLES:
        check(terminal(width, run, arguments), 100, [], whole)
    for show, result, _ in RESULT_TABLES.values():
        terminal(width, show, defaultdict(LARGE.default_factory, result))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_live_view_fits_its_terminal(width):
    seen = {name: ANSWERS[name] for name in ("status", "members", "operators", "queries")}
    lines = plain(screen(seen, width, 24))

    check(lines, width, [QUERY_TITLES] if width == 80 else [], [QUERY, OPERATOR, NEXT, OTHER])
    assert len(lines) <= 24
    assert len(plain(screen({**seen, "operators": OPERATORS * 50}, width, 24, wide=True))) <= 24


def test_the_demo_and_topologies_fit_80_columns(terminal):
    shown = view.View(plain=False)
    shown.agents([(NODE, "europe-central", "16", "12.3 %", "12")])
    shown.queries([("trades by region", "paris-1", "running", "123456", f"window={NODE} map={OTHER} join={NODE}")])
    heads = [["agent", "region", "sees alive", "own error", "operators"], ["query", "taken at", "state", "rows", "its operators run on"]]
    check(terminal(80, lambda: Console(width=80).print(Group(*shown._parts()))), 80, heads, [f"window={NODE}"])

    made = Topology("cities", (NODE, OTHER), (LABELS, LABELS), np.array([[0.0, 123.4], [123.4, 0.0]]), np.zeros(2))
    lines = terminal(80, lambda: print_table(*testbed_cli.topology_table(made)))
    check(lines, 80, [["node", "RTT ms", "median RTT ms", "labels"]], [NODE, OTHER])
    check(terminal(80, run, ["testbed", "topologies"]), 80, [], ["transit-stub"])


def test_pages_fit_80_columns_and_are_markdown_elsewhere(terminal, capsys):
    page = (
        "# Placement\n\n| algorithm | usage penalty | in the paper |\n| --- | ---: | ---: |\n| RANDOM | 86.7 % |  |\n\n"
        + "words " * 20
        + "\n"
    )
    assert terminal(80, print_document, page) == [
        "# Placement",
        "",
        "algorithm  usage penalty  in the paper",
        "RANDOM            86.7 %",
        "",
        "words " * 12 + "words",
        "  words words words words words words words",
    ]
    print_document(page)
    assert capsys.readouterr().out == page


def test_a_pipe_gets_the_main_columns_in_full(agent, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["queries"]) == 0
    head, row, *_ = capsys.readouterr().out.splitlines()

    assert titles(head) == ["query", "state", "rows out", "operators on", "sink at", "sql"]
    assert row.endswith(" ".join(SQL.split()))
    assert f"{OTHER}(lost) {NODE}" in row


def test_a_wide_terminal_shows_more_columns(agent, terminal):
    main = ["name", "status", "rtt ms", "estimated ms", "labels", "address"]
    assert titles(terminal(137, run, ["members"])[0]) == main
    assert titles(terminal(160, run, ["members"])[0]) == [*main, "load ms"]


def test_every_table_of_the_program_is_tried_here():
    """Every function that prints a table must be in one of the lists above."""
    found = set()
    for path in [path for folder in ("sbon", "agent", "testbed") for path in Path(folder).rglob("*.py")]:
        assert "rich.table" not in path.read_text(), f"{path}: tables are made by sbon/cli/tables.py"
        for function in [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]:
            called = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
            if called & {"print_table", "print_record", "table_lines"} and path.name not in ("output.py", "tables.py"):
                found.add(f"{path}:{function.name}")

    tried = {inspect.unwrap(getattr(show, "func", show)) for show, _, _ in RESULT_TABLES.values()}
    here = Path.cwd().resolve()
    results = {f"{Path(str(inspect.getsourcefile(show))).resolve().relative_to(here)}:{show.__name__}" for show in tried}
    cli = {
        "overview.py:status", "overview.py:members", "overview.py:operators", "overview.py:queries", "names.py:names",
        "names.py:functions", "coordinates.py:coordinates", "keys.py:_change", "statements.py:sql", "statements.py:print_listing",
        "plan.py:latency", "statements.py:print_plan", "statements.py:print_recovery", "top.py:_print_once", "top.py:screen",
    }  # fmt: skip
    others = {"testbed/cli.py:topologies", "testbed/documents.py:print_document", "testbed/demo/view.py:_parts"}
    assert found == results | {f"sbon/cli/{one}" for one in cli} | others
