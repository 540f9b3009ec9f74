"""Writes the pages of `docs/reference/`: `make reference`, or `python -m sbon_testbed.reference [FOLDER]`."""

import sys
from pathlib import Path

from sbon_testbed.reference.pages import FOLDER, PAGES


def main(arguments: list[str]) -> int:
    """Writes every page into the given folder, or into `docs/reference`; returns the exit code."""
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")
        print(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
