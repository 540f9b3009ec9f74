"""The evaluation of membership in virtual time, on overlays of a few agents."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sbon.cli.__main__ import build
from sbon.errors import ConfigError
from sbon.membership import MembershipConfig
from sbon_testbed.membership.evaluation import MembershipTrial, evaluate
from sbon_testbed.membership.world import ALIVE, FAILED, MembershipWorld, MembershipWorldConfig

SHORT = {"agents": 12, "idle_s": 10.0, "slow_s": 60.0, "apart_s": 30.0}


def grown(agents: int = 10, seed: int = 1, **settings: float) -> MembershipWorld:
    world = MembershipWorld(agents, seed, MembershipConfig(), MembershipWorldConfig(**settings))
    for number in range(agents):
        world.start(number, (0, 1))
    assert world.run_until(world.whole, 30) is not None
    return world


def test_every_story_is_told_and_every_crash_is_noticed_by_all():
    result = evaluate(MembershipTrial(**SHORT))

    assert result["formation"]["seconds"] < 10
    assert 200 < result["idle"]["datagram_bytes_per_s"] < 3000
    slow = result["slow"]
    assert (slow["agents"], slow["crashes"], slow["noticed"], slow["unnoticed"]) == (1, 3, 33, 0)
    assert slow["false_failures"] == 0
    assert 2 < slow["median_s"] <= slow["p99_s"] <= slow["max_s"] < 10
    assert result["half_restarted"]["seconds"] < 20
    assert result["partition"]["given_up_s"] < 25
    assert result["partition"]["whole_s"] < 120
    assert result["lower_incarnation"]["at_once_s"] < 20
    assert result["lower_incarnation"]["after_30_s_s"] < 20
    json.dumps(result)


def test_the_same_seed_gives_the_same_result():
    def told(seed: int) -> dict[str, object]:
        result = evaluate(MembershipTrial(**{**SHORT, "agents": 6, "slow_s": 15.0, "apart_s": 15.0, "slow": "any", "seed": seed}))
        return {name: value for name, value in result.items() if name not in ("seconds", "memory_mb")}

    assert told(3) == told(3)
    assert told(3) != told(4)


@pytest.mark.parametrize("wrong", [{"agents": 3}, {"slow_share": 0.7}, {"crash_every_s": 1.0}, {"stories": ("fairy",)}])
def test_senseless_trials_are_refused(wrong: dict[str, float]):
    with pytest.raises(ConfigError, match=next(iter(wrong)).removesuffix("ies")):
        MembershipTrial(**wrong)


def test_a_world_is_whole_only_while_everybody_sees_everybody_in_the_present_life():
    world = grown()
    world.kill(4)
    assert world.whole(), "the living see each other"
    world.start(4, (0, 1))
    assert not world.whole(), "nobody has seen the new process yet"
    assert world.run_until(world.whole, 30) is not None


def test_a_stalled_process_handles_what_reached_it_when_it_goes_on():
    world = grown(loss=0.0)
    before = world.processes[3].machine.counters["probes_sent"]
    world.stall(3, 0.5)
    world.run(0.45)
    assert world.processes[3].machine.counters["probes_sent"] == before
    assert world.processes[3].waiting
    world.run(2.0)
    assert not world.processes[3].waiting
    assert world.processes[3].machine.counters["probes_sent"] > before
    assert (world.status == ALIVE).all()


def test_a_partition_lets_nothing_through_until_it_heals():
    world = grown()
    world.partition([0, 1, 2, 3, 4])
    world.run(25)
    assert (world.status[:5, 5:] == FAILED).all()
    assert (world.status[5:, :5] == FAILED).all()
    world.heal()
    assert world.run_until(world.whole, 120) is not None


def test_one_story_alone_begins_in_an_overlay_that_has_formed():
    result = evaluate(MembershipTrial(agents=20, idle_s=20.0, stories=("idle",)))

    assert "formation" not in result
    assert 2.5 < result["idle"]["datagrams_per_s"] < 4.5, "a probe and an answer every 0.6 s: everybody has somebody to probe"


def test_the_command_takes_settings_from_an_agents_file_and_writes_json(tmp_path: Path):
    profile, out = tmp_path / "agent.toml", tmp_path / "out.json"
    profile.write_text("[membership]\ninterval_s = 5.0\n")
    arguments = ["testbed", "membership", "--agents", "8", "--slow-s", "20", "--apart-s", "20", "--seed", "2"]

    run = CliRunner().invoke(build(), [*arguments, "--profile", str(profile), "--json", str(out)])

    assert run.exit_code == 0, run.output
    assert "a crash is noticed after" in run.output
    result = json.loads(out.read_text())
    assert result["idle"]["datagrams_per_s"] < 1.0, "2 datagrams every 5 s"


def test_a_profile_that_is_not_there_is_a_clear_error(tmp_path: Path):
    run = CliRunner().invoke(build(), ["testbed", "membership", "--profile", str(tmp_path / "none.toml")])

    assert isinstance(run.exception, ConfigError)
    assert "none.toml" in str(run.exception)
