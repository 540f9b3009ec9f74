"""Files that are read whole at a start and replaced whole at each save, so that a crash leaves the old one or the new one."""

import os
from pathlib import Path


def read_file(path: Path, bytes_max: int) -> bytes:
    """Returns what is in a file.

    Raises
    ------
    OSError
        It cannot be read.
    ValueError
        It is larger than allowed.
    """
    with path.open("rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise ValueError(f"larger than {bytes_max} bytes")
    return data


def replace_file(path: Path, data: bytes, *, forced: bool = False) -> None:
    """Puts these bytes in the place of a file, at once.

    Parameters
    ----------
    forced : they are on the disk when this returns, so that a machine that loses its power has them; takes milliseconds

    Raises
    ------
    OSError
        The disk refuses; the file is as it was.
    """
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as file:
        file.write(data)
        if forced:
            file.flush()
            os.fsync(file.fileno())
    os.replace(fresh, path)
    if forced:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
