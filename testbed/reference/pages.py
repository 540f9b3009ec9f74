"""The pages of `docs/reference/` and the functions that make them."""

from collections.abc import Callable
from pathlib import Path

from sbon_testbed.reference.commands import commands_page
from sbon_testbed.reference.connectors import connectors_page
from sbon_testbed.reference.functions import functions_page
from sbon_testbed.reference.life import life_page
from sbon_testbed.reference.messages import messages_page
from sbon_testbed.reference.scenarios import scenario_page
from sbon_testbed.reference.settings import settings_page
from sbon_testbed.reference.telemetry import telemetry_page

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"

PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "connectors.md": connectors_page,
    "functions.md": functions_page,
    "life.md": life_page,
    "messages.md": messages_page,
    "scenario.md": scenario_page,
    "settings.md": settings_page,
    "telemetry.md": telemetry_page,
}
"""Pages by the name of the file."""
