"""Names of queries: `home.boot.number`, as in `ams.1t9k2fx.01`.

The home is the agent that took the query. The boot is a random number that the agent's process draws when it starts and tells all members
(`sbon.membership.members.Member.boot`), in seven digits of base 36. The number counts the queries of the process. No name is used twice,
even if a restarted agent has a wrong clock or has lost its files. Names of operators and links contain the query's name, so they are
unique, too. Every agent can tell the queries of a home's present process from those of a former one.
"""

from sbon.types import NodeId, QueryId

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_BOOT_DIGITS = 7
"""Digits of a boot in base 36; seven hold 32 bits."""
_NUMBER_DIGITS = 2
"""Fewest digits of a number, so that the first 1,295 queries of a process sort by age."""


def query_id(home: NodeId, boot: int, number: int) -> QueryId:
    """Returns the name of a process's query.

    Examples
    --------
    >>> query_id("ams", 3_945_678_901, 1), query_id("a.example", 5, 1296)
    ('ams.1t95lbp.01', 'a.example.0000005.100')
    """
    return f"{home}.{_base36(boot).rjust(_BOOT_DIGITS, '0')}.{_base36(number).rjust(_NUMBER_DIGITS, '0')}"


def home_of(query: QueryId) -> NodeId:
    """Returns the home in a query's name, or "" where the name is not of this form.

    Examples
    --------
    >>> home_of("a.example.0000005.100"), home_of("prices")
    ('a.example', '')
    """
    parts = query.rsplit(".", 2)
    return parts[0] if len(parts) == 3 else ""


def boot_of(query: QueryId) -> int | None:
    """Returns the boot in a query's name, or None where the name is not of this form.

    Examples
    --------
    >>> boot_of("ams.1t95lbp.01"), boot_of("prices")
    (3945678901, None)
    """
    parts = query.rsplit(".", 2)
    if len(parts) != 3 or len(parts[1]) != _BOOT_DIGITS or any(digit not in _DIGITS for digit in parts[1]):
        return None
    return int(parts[1], 36)


def is_short_for(text: str, query: QueryId) -> bool:
    """Tells whether a text is a prefix of a query's name or of the part after the home, or equals its number.

    Examples
    --------
    >>> [is_short_for(text, "ams.1t95lbp.01") for text in ("ams.1t9", "1t95", "01", "ms")]
    [True, True, True, False]
    """
    _, _, number = query.rpartition(".")
    return query.startswith(text) or query.removeprefix(f"{home_of(query)}.").startswith(text) or number == text


def _base36(number: int) -> str:
    text = ""
    while number:
        number, last = divmod(number, 36)
        text = _DIGITS[last] + text
    return text or "0"
