import io
import json

import numpy as np
import pytest

from sbon.cli.__main__ import run
from sbon.cost.latency import KnownLatencies
from sbon.cost.model import Conditions
from sbon.cost.network_usage import NetworkUsage
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.errors import ConfigError
from sbon.optimiser.asking import AskCandidate
from sbon.placement.baselines import on_multicast_tree
from sbon.placement.config import PlacementConfig
from sbon.placement.optimal import optimal_assignment
from sbon_testbed.placement import evaluation
from sbon_testbed.placement.evaluation import CONFIGURED, STRATEGIES, Runner, evaluate, strategies_for
from sbon_testbed.placement.network import completed, from_matrix, settled, transit_stub
from sbon_testbed.placement.oracle import Oracle
from sbon_testbed.placement.queries import aggregate, draw_query
from sbon_testbed.placement.scores import Tally, direct_delay_ms
from sbon_testbed.progress import Progress
from tests.placement_worlds import synthetic_space, truth_of

GAP = float("nan")


def small_matrix(count=40):
    space = synthetic_space(count, 21)
    return 2 * truth_of(space, 0.1, 21).matrix_ms(space.names, space.names)


def without_times(result):
    for figures in result["strategies"].values():
        del figures["milliseconds_per_query"]
    return result


def test_missing_rtts_are_filled_over_a_third_node():
    filled = completed(np.array([[0.0, 10.0, GAP], [20.0, 0.0, 30.0], [GAP, GAP, 0.0]]))

    assert filled.tolist() == [[0.0, 15.0, 45.0], [15.0, 0.0, 30.0], [45.0, 30.0, 0.0]]


def test_a_node_that_nobody_reaches_is_named():
    with pytest.raises(ConfigError, match="no RTT between nodes 0 and 2"):
        completed(np.array([[0.0, 10.0, GAP], [10.0, 0.0, GAP], [GAP, GAP, 0.0]]))


def test_of_a_matrix_over_time_the_first_slice_is_taken_or_the_median():
    slices = np.array([[[0.0, rtt], [rtt, 0.0]] for rtt in (10.0, 99.0, 12.0)])

    assert from_matrix(slices).rtt_ms.tolist() == [[0.0, 10.0], [10.0, 0.0]]
    assert from_matrix(slices, "median").rtt_ms.tolist() == [[0.0, 12.0], [12.0, 0.0]]


def test_the_direct_delay_is_that_of_the_farthest_producer():
    truth = KnownLatencies(["a", "b", "c"], np.array([[0.0, 20.0, 60.0], [20.0, 0.0, 100.0], [60.0, 100.0, 0.0]]))
    links = (PlacementLink("p", "f", 1.0), PlacementLink("q", "f", 1.0), PlacementLink("f", "s", 1.0))

    assert direct_delay_ms(PlacementProblem({"p": "a", "q": "b", "s": "c"}, ("f",), links), truth) == 50.0


def test_a_query_that_costs_next_to_nothing_does_not_count_like_a_dear_one_in_what_all_cost_together():
    truth = KnownLatencies(["a", "b", "c"], np.array([[0.0, 0.2, 60.0], [0.2, 0.0, 60.0], [60.0, 60.0, 0.0]]))
    links = (PlacementLink("p", "f", 1000.0), PlacementLink("f", "s", 1000.0))
    near = PlacementProblem({"p": "a", "s": "b"}, ("f",), links)
    far = PlacementProblem({"p": "a", "s": "c"}, ("f",), links)
    tally = Tally()
    tally.score(near, {**near.pinned, "f": "c"}, truth, best=0.1)  # 60 bytes in transit instead of 0.1
    tally.score(far, {**far.pinned, "f": "b"}, truth, best=30.0)  # 30.1 instead of 30

    figures = tally.result()
    assert figures["usage_penalty_mean"] == pytest.approx((599 + 0.1 / 30) / 2)
    assert figures["usage_penalty_total"] == pytest.approx(90.1 / 30.1 - 1)
    assert figures["delay_penalty_mean"] == pytest.approx((599 + 0.1 / 30) / 2)


@pytest.mark.parametrize("shape", ["aggregate", "join-tree", "mixed"])
def test_queries_are_drawn_from_the_seed(shape):
    names = [f"n{i}" for i in range(30)]
    drawn = [[draw_query(shape, names, np.random.default_rng(seed)) for seed in range(20)] for _ in range(2)]

    assert drawn[0] == drawn[1]
    assert all(problem.unpinned and problem.producers and problem.consumers for problem in drawn[0])


def test_the_papers_query_has_its_rates_and_one_producer_a_node():
    """SBON, section 4.1: four producers of 2 KB/s, an aggregator of 8:1, a consumer."""
    problem = aggregate([f"n{i}" for i in range(5)], np.random.default_rng(3))

    assert sorted(problem.pinned.values()) == ["n0", "n1", "n2", "n3", "n4"]
    assert [link.rate_bytes_per_s for link in problem.links] == [2000.0] * 4 + [1000.0]


@pytest.mark.parametrize("shape", ["aggregate", "join-tree", "mixed"])
def test_the_quick_way_to_the_optimum_finds_what_the_exhaustive_one_does(shape):
    network = from_matrix(small_matrix(20))
    truth = KnownLatencies(network.names, network.rtt_ms)
    oracle = Oracle(network.names, truth)
    rng = np.random.default_rng(5)
    for _ in range(20):
        problem = draw_query(shape, list(network.names), rng)
        quick = oracle.best(problem)

        assert quick.keys() == {*problem.pinned, *problem.unpinned}
        assert NetworkUsage().of_assignment(problem, quick, Conditions(truth)) == pytest.approx(
            optimal_assignment(problem, truth, network.names)[1]
        )


def test_operators_that_hang_on_nothing_or_by_parallel_links_have_an_optimum_too():
    truth = KnownLatencies(["a", "b"], np.array([[0.0, 20.0], [20.0, 0.0]]))
    links = tuple(PlacementLink(*ends) for ends in (("p", "f", 1.0), ("f", "g", 1.0), ("f", "g", 2.0), ("g", "s", 2.0)))
    problem = PlacementProblem({"p": "a", "s": "b"}, ("alone", "f", "g"), links)

    best = Oracle(["a", "b"], truth).best(problem)

    assert (best["f"], best["g"]) == ("b", "b")
    assert best["alone"] in ("a", "b")


@pytest.mark.parametrize("shape", ["aggregate", "mixed"])
def test_no_strategy_beats_the_optimum_and_ours_comes_nearest(shape):
    result = evaluate(from_matrix(small_matrix()), queries=8, shape=shape, rounds=60).result()

    penalty = {name: figures["usage_penalty_mean"] for name, figures in result["strategies"].items()}
    assert penalty["optimal"] == 0.0
    assert min(penalty.values()) >= 0.0
    assert min(penalty, key=lambda name: penalty[name] if name != "optimal" else 9.9) == "least-usage"
    assert result["strategies"]["least-usage-unprobed"]["probes_per_query"] == 0
    assert result["strategies"]["least-usage"]["probes_per_query"] > 0


def test_the_same_seed_gives_the_same_figures_and_another_seed_others():
    first, again, other = (evaluate(from_matrix(small_matrix()), queries=4, rounds=20, seed=seed).result() for seed in (1, 1, 2))

    assert without_times(first) == without_times(again)
    assert first["strategies"]["random"] != other["strategies"]["random"]


def test_jitter_reaches_coordinates_and_what_candidates_report():
    """Placements by measured RTTs cost more when these are noisy; the strategy `consumer` uses no RTTs."""
    exact, noisy = (
        evaluate(from_matrix(small_matrix()), queries=40, rounds=60, strategies=("least-usage", "consumer"), jitter=share)
        for share in (0.0, 0.3)
    )

    assert exact.coordinate_median_error < noisy.coordinate_median_error
    assert sum(exact.tallies["least-usage"].usage_penalty) < sum(noisy.tallies["least-usage"].usage_penalty)
    assert exact.tallies["consumer"].usage_penalty == noisy.tallies["consumer"].usage_penalty


def test_reports_are_as_noisy_as_the_fastest_of_three_probes():
    network = from_matrix(small_matrix())
    found = settled(network, 30, np.random.default_rng(1))
    truth = KnownLatencies(network.names, network.rtt_ms)
    problem = aggregate(list(network.names), np.random.default_rng(3))
    told = {}
    for share in (0.0, 0.1):
        runner = Runner("least-usage", network, found, truth, np.random.default_rng(1), share)
        told[share] = runner.report(AskCandidate(network.names[0], network.names[1:], ()), Tally()).rtts_ms
        assert runner.place(problem, Tally()).keys() == {*problem.pinned, *problem.unpinned}

    excess = np.array([told[0.1][peer] / told[0.0][peer] - 1.0 for peer in network.names[1:]])
    assert excess.min() >= 0.0
    assert np.mean(excess) == pytest.approx(0.1 / 3, rel=0.5)  # observed 0.030


def test_nodes_tell_what_they_have_measured_as_agents_would():
    network = from_matrix(small_matrix())
    me, other = network.names[0], network.names[7]
    found = settled(network, 60, np.random.default_rng(1))
    known = {peer for peer in network.names if found.localisers[me].measured_rtt_ms(peer) is not None}

    told = found.remembered({me: (other,)}, 3)[me]

    nearest = sorted(known, key=lambda peer: network.rtt_ms[0, network.names.index(peer)])[:3]
    assert set(told) == {*nearest, *({other} & known)}
    assert all(rtt_ms == pytest.approx(network.rtt_ms[0, network.names.index(peer)], abs=0.001) for peer, rtt_ms in told.items())


def test_what_nodes_remember_brings_placement_nearer_to_the_optimum(monkeypatch):
    space = synthetic_space(60, 21)
    truth = truth_of(space, 0.6, 21)  # coordinates cannot represent such latencies well
    network = from_matrix(2 * truth.matrix_ms(space.names, space.names))
    found = settled(network, 40, np.random.default_rng(1))
    truth = KnownLatencies(network.names, network.rtt_ms)
    rng = np.random.default_rng(3)
    problems = [aggregate(list(network.names), rng) for _ in range(15)]
    monkeypatch.setitem(CONFIGURED, "few", PlacementConfig(candidates=2, candidates_max=4, probes=20))
    usage = {}
    for neighbour_rtts in (0, 64):
        monkeypatch.setattr(evaluation, "NEIGHBOUR_RTTS", neighbour_rtts)
        runner, tally = Runner("few", network, found, truth, np.random.default_rng(1), 0.1), Tally()
        placed = [runner.place(problem, tally) for problem in problems]
        usage[neighbour_rtts] = sum(
            NetworkUsage().of_assignment(p, where, Conditions(truth)) for p, where in zip(problems, placed, strict=True)
        )
        assert tally.probes <= 20 * len(problems)

    assert usage[64] < 0.95 * usage[0]  # observed 0.83


def test_a_strategys_draws_do_not_depend_on_the_others():
    network = from_matrix(small_matrix())
    alone = evaluate(network, queries=5, rounds=20, strategies=("random",)).tallies["random"]
    together = evaluate(network, queries=5, rounds=20).tallies["random"]

    assert alone.usage_penalty == together.usage_penalty


def test_ip_multicast_is_there_where_routes_are_known():
    assert "ip-multicast" not in strategies_for(from_matrix(small_matrix(6)))
    assert strategies_for(transit_stub(1, stub_domains=5)) == STRATEGIES
    assert strategies_for(transit_stub(1, stub_domains=5), ("ip-multicast", "optimal")) == ("optimal", "ip-multicast")


def test_ip_multicast_and_the_consumer_do_not_lengthen_the_way():
    """SBON, table 1: their delay penalty is 0, because they are on the network's own routes."""
    tallies = evaluate(transit_stub(3, stub_domains=12), queries=30, rounds=20, strategies=("ip-multicast", "consumer")).tallies

    assert set(tallies["ip-multicast"].delay_penalty) == {0.0}
    assert set(tallies["consumer"].delay_penalty) == {0.0}
    assert sum(tallies["ip-multicast"].usage_penalty) < sum(tallies["consumer"].usage_penalty)


def test_the_multicast_node_lies_on_the_routes_of_all_producers():
    network = transit_stub(2, stub_domains=12)
    rng = np.random.default_rng(2)
    for _ in range(20):
        problem = aggregate(list(network.names), rng)
        node = on_multicast_tree(problem, network.routes)["a"]

        assert all(node in network.routes(problem.pinned[p], problem.pinned["c"]) for p in problem.producers)


def test_relaxation_is_the_papers_whatever_the_defaults_are():
    assert (CONFIGURED["relaxation"].delta, CONFIGURED["relaxation"].force_threshold) == (0.1, 1.0)


def test_coordinates_settle_and_progress_is_told():
    network = from_matrix(small_matrix(12))
    told = []
    found = settled(network, 3, np.random.default_rng(1), lambda *step: told.append(step))

    assert found.space.names == network.names
    assert told == [("coordinates, rounds", number, 3) for number in (1, 2, 3)]


def test_progress_goes_to_a_file_line_by_line_and_can_be_silenced():
    shown, silent = io.StringIO(), io.StringIO()
    for stream, wanted in ((shown, True), (silent, False)):
        progress = Progress(wanted, stream)
        progress("queries", 1, 2000)
        progress("queries", 2000, 2000)

    assert shown.getvalue() == "queries: 2,000 of 2,000\n"
    assert silent.getvalue() == ""


def test_vivaldi_finds_other_coordinates(tmp_path, capsys):
    np.savez(tmp_path / "m.npz", rtt=small_matrix())
    off = {}
    for algorithm in ("refit", "vivaldi"):
        arguments = ["--matrix", str(tmp_path / "m.npz"), "--queries", "1", "--rounds", "50", "--strategy", "optimal", "--quiet"]
        assert run(["testbed", "placement", *arguments, "--algorithm", algorithm, "--json", "-"]) == 0
        result = json.loads(capsys.readouterr().out)
        off[result["algorithm"]] = result["coordinate_median_error"]

    assert off["refit"] < off["vivaldi"]


def test_an_unknown_strategy_is_named():
    with pytest.raises(ConfigError, match="'best' is unknown"):
        evaluate(from_matrix(small_matrix()), queries=1, strategies=("best",))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either --matrix FILE or --topology transit-stub"),
        (["--matrix", "m.npz", "--topology", "transit-stub"], "give either"),
        (["--matrix", "m.npz", "--strategy", "best"], "strategy 'best' is unknown"),
        (["--matrix", "m.npz", "--strategy", "ip-multicast"], "needs the network's routes"),
        (["--matrix", "m.npz", "--queries", "0"], "--queries"),
        (["--matrix", "m.npz", "--queries", "1", "--jitter", "-1"], "jitter = -1.0, expected 0 to 10"),
        (["--matrix", "m.npz", "--slice", "last"], "--slice last, expected first, median or a number"),
        (["--matrix", "m.npz", "--seed", "-1"], "--seed"),
    ],
)
def test_wrong_usage_ends_with_one_line_and_code_2(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("m.npz", rtt=small_matrix(12))

    assert run(["testbed", "placement", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_command_writes_json(tmp_path, capsys):
    np.savez(tmp_path / "m.npz", rtt=small_matrix(12))
    out = tmp_path / "out.json"
    arguments = ["--matrix", str(tmp_path / "m.npz"), "--queries", "2", "--rounds", "20", "--strategy", "relaxation", "--json", str(out)]

    assert run(["testbed", "placement", *arguments]) == 0
    result = json.loads(out.read_text())
    assert sorted(result["strategies"]) == ["optimal", "relaxation"]
    assert (result["nodes"], result["queries"], result["seed"]) == (12, 2, 1)
    wanted = {"usage_penalty_mean", "usage_penalty_p80", "delay_penalty_mean", "probes_per_query", "milliseconds_per_query"}
    assert all(wanted <= figures.keys() for figures in result["strategies"].values())
    assert result["coordinate_median_error"] > 0
    shown = capsys.readouterr()
    assert "relaxation" in shown.out
    assert shown.err == "coordinates, rounds: 20 of 20\nqueries: 2 of 2\n"


def test_the_optimum_alone_can_be_asked_for(tmp_path, capsys):
    np.savez(tmp_path / "m.npz", rtt=small_matrix(12))

    assert (
        run(["testbed", "placement", "--matrix", str(tmp_path / "m.npz"), "--queries", "2", "--strategy", "optimal", "-q", "--json", "-"])
        == 0
    )
    assert list(json.loads(capsys.readouterr().out)["strategies"]) == ["optimal"]
