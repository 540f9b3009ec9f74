"""Reads text files that a process is still writing."""

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """Returns the lines of a file that end with a line break, without it; none if there is no file. The last line may be half written."""
    return path.read_text().split("\n")[:-1] if path.exists() else []
