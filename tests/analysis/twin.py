"""Computes the report's numbers from the raw rows in the plainest way: polars, loops, and a search of all placements."""

import math
from collections import defaultdict
from datetime import datetime, timedelta
from itertools import combinations, pairwise, product
from pathlib import Path

import polars as pl

from sbon.digest import middle_ms


class Twin:
    """The rows of a log, and the report's numbers computed from them.

    Parameters
    ----------
    width_s : length of a moment
    """

    def __init__(self, directory: Path, width_s: int) -> None:
        self._directory = directory
        self.width_s = width_s

    def rows(self, kind: str) -> pl.DataFrame:
        files = sorted(self._directory.glob(f"**/kind={kind}/**/*.parquet"))
        frame = pl.concat([pl.read_parquet(file, hive_partitioning=False) for file in files])
        return frame.with_columns(pl.col("time").dt.truncate(f"{self.width_s}s").alias("moment"))

    # -- the log and its coordinates ------------------------------------------------------------------------------------

    def errors(self) -> list[float]:
        probes = self.rows("probes").filter(pl.col("rtt_ms") > 0)
        return sorted(abs(p - r) / r for p, r in probes.select("predicted_ms", "rtt_ms").iter_rows())

    def drift(self) -> float:
        moved = seconds = 0.0
        for _, run in self.rows("coordinates").sort("time").group_by("agent", "start", maintain_order=True):
            rows = run.select("time", "vector_ms", "height_ms").rows()
            for (t0, v0, h0), (t1, v1, h1) in pairwise(rows):
                moved += math.dist(v0, v1) + abs(h1 - h0)
                seconds += (t1 - t0).total_seconds()
        return moved / seconds

    def least_rtt(self) -> dict[datetime, dict[frozenset[str], float]]:
        found: dict[datetime, dict[frozenset[str], float]] = defaultdict(dict)
        for moment, agent, peer, rtt in self.rows("probes").select("moment", "agent", "peer", "rtt_ms").iter_rows():
            pair = frozenset((agent, peer))
            found[moment][pair] = min(rtt, found[moment].get(pair, math.inf))
        return found

    def triangles(self) -> tuple[int, int, list[float]]:
        """Returns the number of pairs, the number with a shorter detour, and the savings of the best detours."""
        sums: dict[frozenset[str], list[float]] = defaultdict(list)
        for pairs in self.least_rtt().values():
            for pair, rtt in pairs.items():
                sums[pair].append(rtt)
        mean = {pair: sum(values) / len(values) for pair, values in sums.items()}
        names = sorted(set().union(*mean))
        savings = []
        for pair, direct in mean.items():
            a, b = sorted(pair)
            ways = [mean.get(frozenset((a, k)), math.inf) + mean.get(frozenset((k, b)), math.inf) for k in names if k not in pair]
            if min(ways, default=math.inf) < direct * (1 - 1e-9):
                savings.append(1 - min(ways) / direct)
        return len(mean), len(savings), sorted(savings)

    def converged(self, median: float, steps: tuple[int, ...]) -> int | None:
        starts = dict(self.rows("agents").filter(pl.col("event") == "started").select("start", "time").iter_rows())
        by_step: dict[int, list[float]] = defaultdict(list)
        for time, start, predicted, rtt in self.rows("probes").select("time", "start", "predicted_ms", "rtt_ms").iter_rows():
            age = (time - starts[start]).total_seconds() if start in starts else -1
            for end in steps:
                if 0 <= age < end:
                    by_step[end].append(abs(predicted - rtt) / rtt)
                    break
        good = [end for end in sorted(by_step) if nearest_rank(by_step[end], 0.5) <= 1.2 * median]
        late_bad = [end for end in sorted(by_step) if nearest_rank(by_step[end], 0.5) > 1.2 * median]
        settled = [end for end in good if not late_bad or end > max(late_bad)]
        return min(settled, default=None)

    # -- network usage --------------------------------------------------------------------------------------------------

    def latencies(self) -> dict[datetime, tuple[list[str], dict[frozenset[str], float], dict[str, int]]]:
        """Returns by moment: node names, one-way latencies by pair, and how many latencies come from each source."""
        measured = self.least_rtt()
        positions: dict[datetime, dict[str, tuple]] = defaultdict(dict)
        for moment, agent, vector, height in (
            self.rows("coordinates").sort("time").select("moment", "agent", "vector_ms", "height_ms").iter_rows()
        ):
            positions[moment][agent] = (vector, height)
        last: dict[frozenset[str], tuple[datetime, float]] = {}
        result = {}
        for moment in sorted(set(self.rows("links")["moment"])):
            now, here = measured.get(moment, {}), positions.get(moment, {})
            last.update({pair: (moment, rtt) for pair, rtt in now.items()})
            names = sorted(set().union(*now, here))
            way: dict[frozenset[str], float] = {}
            sources = dict.fromkeys(("measured", "remembered", "predicted", "unknown"), 0)
            for pair in map(frozenset, combinations(names, 2)):
                a, b = pair
                if pair in last and last[pair][0] >= moment - timedelta(hours=1):
                    way[pair] = last[pair][1] / 2
                    sources["measured" if pair in now else "remembered"] += 1
                elif a in here and b in here:
                    way[pair] = (math.dist(here[a][0], here[b][0]) + here[a][1] + here[b][1]) / 2
                    sources["predicted"] += 1
                else:
                    sources["unknown"] += 1
            result[moment] = (names, way, sources)
        return result

    def costs(self) -> tuple[list[dict], dict[datetime, float], dict[str, int]]:
        """Returns actual and hypothetical costs by query and moment, totals by moment (shared links once), and pairs by source."""
        latencies = self.latencies()
        pairs: dict[str, int] = defaultdict(int)
        for *_, sources in latencies.values():
            for name, times in sources.items():
                pairs[name] += times
        pinned: dict[str, bool] = {}
        for operators in self.rows("placements")["operators"].to_list():
            pinned |= {one["operator"]: one["pinned"] for one in operators if one["reused"] is None}
        first: dict[str, str] = {}
        for source, target, agent, there in self.rows("links").sort("time").select("source", "target", "agent", "target_node").iter_rows():
            first.setdefault(source, agent)
            first.setdefault(target, there)
        costs, totals = [], {}
        for (moment,), rows in self.rows("links").group_by("moment"):
            names, way, _ = latencies[moment]

            def one_way(a: str, b: str, way=way) -> float:
                return 0.0 if a == b else way.get(frozenset((a, b)), math.inf)

            samples: dict[str, list[dict]] = defaultdict(list)
            for row in rows.iter_rows(named=True):
                samples[row["link"]].append(row)
            rate = {link: sum(row["bytes_per_s"] for row in own) / len(own) for link, own in samples.items()}
            actual = {
                link: sum(row["bytes_per_s"] * one_way(row["agent"], row["target_node"]) for row in own) / len(own) / 1000
                for link, own in samples.items()
            }
            totals[moment] = sum(actual.values())
            for query in sorted({name for own in samples.values() for row in own for name in row["queries"]}):
                mine = {link: own for link, own in samples.items() if query in own[0]["queries"]}
                costs.append({"moment": moment, "query": query, **_query(mine, rate, actual, one_way, names, pinned, first)})
        return costs, totals, dict(pairs)

    # -- the rest -------------------------------------------------------------------------------------------------------

    def digest(self) -> dict[int, int]:
        total: dict[int, int] = defaultdict(int)
        for buckets in self.rows("latencies")["buckets"].to_list():
            for bucket in buckets:
                total[bucket["number"]] += bucket["rows"]
        return total


def _query(mine, rate, actual, one_way, names, pinned, first) -> dict:
    links = [(own[0]["source"], own[0]["target"], rate[link]) for link, own in mine.items()]
    times: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for own in mine.values():
        for row in own:
            times[row["source"]][row["agent"]] += 1 / len(own)
            times[row["target"]][row["target_node"]] += 1 / len(own)
    hosts = {operator: max(sorted(nodes), key=lambda node, nodes=nodes: nodes[node]) for operator, nodes in times.items()}
    sending, receiving = {source for source, *_ in links}, {target for _, target, _ in links}
    fixed = {op: node for op, node in hosts.items() if pinned.get(op, op not in sending or op not in receiving)}
    movable = sorted(hosts.keys() - fixed.keys())

    def usage(where: dict[str, str]) -> float:
        return sum(r * one_way(where[a], where[b]) for a, b, r in links) / 1000

    def delay(where: dict[str, str]) -> float:
        def longest(op: str) -> float:
            return max((longest(a) + one_way(where[a], where[op]) for a, b, _ in links if b == op), default=0.0)

        return max(longest(op) for op in where)

    def at(nodes: set[str]) -> float:
        if not nodes:  # the node is down: no placement to compare with
            return math.inf
        return sum(usage({**dict.fromkeys(movable, node), **fixed}) for node in nodes) / len(nodes)

    unmoved = {op: node if op in fixed else first[op] for op, node in hosts.items()}
    return {
        "usage": sum(actual[link] for link in mine),
        "unmoved": usage(unmoved),
        "producer": at({fixed[op] for op in fixed if op not in receiving}),
        "consumer": at({fixed[op] for op in fixed if op not in sending}),
        "optimal": min(usage({**fixed, **dict(zip(movable, nodes, strict=True))}) for nodes in product(names, repeat=len(movable))),
        "delay_ms": delay(hosts),
        "delay_unmoved_ms": delay(unmoved),
    }


def nearest_rank(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def digest_quantile(buckets: dict[int, int], share: float) -> float:
    values = [number for number in sorted(buckets) for _ in range(buckets[number])]
    return middle_ms(values[max(0, math.ceil(share * len(values)) - 1)])
