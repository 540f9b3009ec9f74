"""Decides which settings a running agent applies when it reads its configuration again, and which wait for its next start.

`Agent.reload` uses it.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Generic

import msgspec

from sbon.config import ConfigType, setting_paths


class Effect(Enum):
    """The time at which a new value takes effect."""

    AT_ONCE = "at once"
    RESTART = "at the next start"


EFFECTS: dict[str, Effect] = {
    "name": Effect.RESTART,
    "bind": Effect.RESTART,
    "advertise": Effect.RESTART,
    "join": Effect.RESTART,
    "data_dir": Effect.RESTART,
    "key_file": Effect.AT_ONCE,
    "initial_key_file": Effect.RESTART,
    "leaving_s": Effect.AT_ONCE,
    "leave_timeout_s": Effect.AT_ONCE,
    "labels": Effect.RESTART,
    "log": Effect.AT_ONCE,
    "control": Effect.RESTART,
    "membership": Effect.AT_ONCE,
    "membership.join_backoff_s_min": Effect.RESTART,
    "membership.introductions_max": Effect.RESTART,
    "membership.introductions_per_teller_max": Effect.RESTART,
    "peers": Effect.RESTART,
    "coordinate": Effect.RESTART,
    "load": Effect.RESTART,
    "placement": Effect.RESTART,
    "hosting": Effect.RESTART,
    "optimiser": Effect.AT_ONCE,
    "engine": Effect.RESTART,
    "connectors": Effect.AT_ONCE,
    "links": Effect.RESTART,
    "migration": Effect.RESTART,
    "telemetry": Effect.RESTART,
}
"""Effect by the path of a setting or of its section; the longest matching path counts. `key_file` waits for a restart if encryption would
begin or end."""


@dataclass(frozen=True)
class Reload(Generic[ConfigType]):
    """Result of comparing the running configuration with a new one."""

    config: ConfigType
    """New running configuration: the old one with the changes that take effect at once."""
    applied: tuple[str, ...]
    """Paths of changed settings that take effect at once."""
    waiting: tuple[str, ...]
    """Paths of changed settings that wait for a restart."""

    def changes(self, section: str) -> bool:
        """Tells whether anything in a section takes effect now."""
        return any(path == section or path.startswith(f"{section}.") for path in self.applied)


def reload_of(old: ConfigType, fresh: ConfigType) -> Reload[ConfigType]:
    """Compares two configurations, and sorts the changed settings by the time at which they take effect."""
    seals_as_before = bool(_value(old, "key_file")) == bool(_value(fresh, "key_file"))
    config, applied, waiting = old, [], []
    for path in changed(old, fresh):
        if effect_of(path) is Effect.AT_ONCE and (path != "key_file" or seals_as_before):
            config = _replaced(config, path, _value(fresh, path))
            applied.append(path)
        else:
            waiting.append(path)
    return Reload(config, tuple(applied), tuple(waiting))


def effect_of(path: str) -> Effect:
    """Returns when a new value of a setting takes effect."""
    while path not in EFFECTS:
        path, _, _ = path.rpartition(".")
    return EFFECTS[path]


@cache
def settings(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Returns the paths of all settings of a configuration, without those of sections."""
    paths = setting_paths(kind)
    return tuple(path for path in paths if not any(other.startswith(f"{path}.") for other in paths))


def changed(old: ConfigType, new: ConfigType) -> list[str]:
    """Returns the paths of the settings in which two configurations differ, including those within sections."""
    return [path for path in settings(type(old)) if _value(old, path) != _value(new, path)]


def _value(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def _replaced(config: ConfigType, path: str, value: Any) -> ConfigType:
    """Returns the configuration with another value at a path. The value is not checked: loading has checked the new configuration."""
    name, _, below = path.partition(".")
    return msgspec.structs.replace(config, **{name: _replaced(getattr(config, name), below, value) if below else value})
