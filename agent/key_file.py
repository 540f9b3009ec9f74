"""Writes the file that keeps an agent's cluster keys, always as a whole. The daemon and `sbon_agent.cluster_keys` use it."""

import os
from contextlib import suppress
from pathlib import Path

from sbon.errors import ConfigError
from sbon.sealing import KeyRing

HEADER = "# sbon cluster keys, the key that seals first: keep them secret; `sbon keys` changes them on all agents\n"


def replace_key_file(path: Path, before: KeyRing, after: KeyRing) -> None:
    """Replaces the file by the ring, readable by its owner alone. At every instant the file holds the old ring or the new one.

    Raises
    ------
    ConfigError
        The file holds neither ring (it was edited and not reloaded), or cannot be written.
    """
    path = Path(os.path.realpath(path))  # the target of a symbolic link, not the link
    part = path.with_name(f".{path.name}.new")
    try:
        known = KeyRing.parse(path.read_text(encoding="ascii")).ids if path.exists() else before.ids
        if known == after.ids:
            return  # another agent of this machine shares the file and was faster
        if known != before.ids:
            raise ConfigError(f"the key file {path} has been changed by hand; run `sbon reload` there first")
        _write(part, after)
        part.replace(path)
        _sync(path.parent)
    except OSError as problem:
        raise ConfigError(f"cannot write the key file {path}: {problem.strerror}") from problem
    except UnicodeDecodeError:
        raise ConfigError(f"the key file {path} no longer holds keys; restore it and run `sbon reload`") from None


def copy_key_file(initial: Path, path: Path) -> None:
    """Copies the keys of the file `initial` to `path`, readable by its owner alone. Does nothing if `path` exists.

    Raises
    ------
    ConfigError
        `initial` cannot be read or holds no keys, or `path` cannot be written.
    """
    if path.exists():
        return
    try:
        ring = KeyRing.parse(initial.read_text(encoding="ascii"))
    except OSError as problem:
        raise ConfigError(f"cannot read the initial key file {initial}: {problem.strerror}") from problem
    except UnicodeDecodeError:
        raise ConfigError(f"the initial key file {initial} holds no keys as `sbon keygen` makes them") from None
    part = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(part, ring)
        with suppress(FileExistsError):  # another agent of this machine shares the file and was faster
            os.link(part, path)
        part.unlink()
        _sync(path.parent)
    except OSError as problem:
        raise ConfigError(f"cannot write the key file {path}: {problem.strerror}") from problem


def _write(path: Path, ring: KeyRing) -> None:
    """Creates a file with the ring and syncs it to disk."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(HEADER + ring.print())
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Syncs the entries of a folder to disk."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
