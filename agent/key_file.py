"""The file that keeps an agent's cluster keys, replaced as a whole."""

import os
from pathlib import Path

from sbon.errors import ConfigError
from sbon.sealing import KeyRing

HEADER = "# sbon cluster keys, the sealing one first: keep them secret; `sbon keys` changes them on all agents\n"


def replace_key_file(path: Path, before: KeyRing, after: KeyRing) -> None:
    """Write the ring in place of the file, readable by its owner alone; the file is the old one or the new one at every instant.

    Raises
    ------
    ConfigError
        The file holds neither ring (somebody has edited it, and it has not been reloaded), or cannot be written.
    """
    path = Path(os.path.realpath(path))  # the file itself, where a link leads to it
    part = path.with_name(f".{path.name}.new")
    try:
        known = KeyRing.parse(path.read_text(encoding="ascii")).ids if path.exists() else before.ids
        if known == after.ids:
            return  # another agent of this machine shares the file and was faster
        if known != before.ids:
            raise ConfigError(f"the key file {path} has been changed by hand; `sbon reload` there first")
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(HEADER + after.print())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as problem:
        raise ConfigError(f"cannot write the key file {path}: {problem.strerror}") from problem
    except UnicodeDecodeError:
        raise ConfigError(f"the key file {path} holds no keys any more; put it right and `sbon reload`") from None
