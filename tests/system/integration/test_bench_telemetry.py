"""`sbon bench telemetry` on a small overlay."""

import json

import pytest

from sbon.cli.__main__ import run
from sbon.errors import ConfigError
from sbon_testbed.bench.telemetry import measure, show


def test_the_share_is_made_of_recording_and_writing(capsys):
    assert run(["bench", "telemetry", "--agents", "3", "--queries", "1", "--seconds", "10", "--json"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert result["records_per_s"] > 1
    assert result["record_us"] > 0
    assert result["recording_share"] == pytest.approx(result["record_us"] * result["records_per_s"] / 1e6)
    assert result["share"] == pytest.approx(result["recording_share"] + result["writing_share"])
    show(result)
    assert "should be at most" in capsys.readouterr().out


def test_one_agent_is_no_overlay():
    with pytest.raises(ConfigError, match="2 to 200 agents"):
        measure(agents=1)
