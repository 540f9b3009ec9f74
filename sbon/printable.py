"""Makes texts from others safe for a terminal or a log, so that they cannot move the cursor, change colours or hide text.

Names, labels, SQL, reasons and rows may come from any member of the overlay.
"""


def printable(text: str, keep: str = "") -> str:
    """Returns the text with escapes for unprintable characters: controls, writing directions, separators.

    Parameters
    ----------
    keep : unprintable characters that are left unchanged

    Examples
    --------
    >>> print(printable("Zürich\\x1b[2J\\n"))
    Zürich\\x1b[2J\\n
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text])


def printable_json(text: str) -> str:
    """Returns a JSON document with JSON escapes for unprintable characters; line breaks stay.

    Examples
    --------
    >>> print(printable_json('"a\\x9b\\u202e"'))
    "a\\u009b\\u202e"
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c == "\n" else _units(c) for c in text])


def _units(character: str) -> str:
    data = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[place : place + 2].hex()}" for place in range(0, len(data), 2))
