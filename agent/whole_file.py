"""Reads and replaces small files as a whole, so that a crash leaves the old one or the new one."""

import os
from pathlib import Path


def read_file(path: Path, bytes_max: int) -> bytes:
    """Returns the contents of a file.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        The file is larger than `bytes_max`.
    """
    with path.open("rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise ValueError(f"larger than {bytes_max} bytes")
    return data


def replace_file(path: Path, data: bytes, *, forced: bool = False) -> None:
    """Replaces the contents of a file, atomically.

    Parameters
    ----------
    forced : whether to sync the file to disk before returning, so that it survives a power failure; takes milliseconds

    Raises
    ------
    OSError
        The file cannot be written; it stays as it was.
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
