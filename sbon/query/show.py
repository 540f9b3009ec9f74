"""Reads DESCRIBE and SHOW, which the agent answers at once.

DESCRIBE name | DESC name | SHOW COLUMNS FROM name
SHOW SOURCES | VIEWS | SINKS | TABLES | QUERIES | FUNCTIONS
SHOW CREATE SOURCE | VIEW | SINK name
"""

from dataclasses import dataclass, field, replace

from sqlglot.tokenizer_core import Token, TokenType

from sbon.query.catalog import did_you_mean
from sbon.query.dialect import Text, tokenize
from sbon.query.places import NAME, Places
from sbon.query.system import SINK_CONNECTORS, SOURCE_CONNECTORS

LISTS = ("sources", "views", "sinks", "tables", "queries", "functions")
"""Kinds of things that SHOW lists."""
_FORMS = "write SHOW SOURCES, VIEWS, SINKS, TABLES, QUERIES or FUNCTIONS, SHOW CREATE VIEW name, or DESCRIBE name"
_INSTEAD = {
    "JOBS": "write SHOW QUERIES",
    "PROCESSLIST": "write SHOW QUERIES",
    "STREAMS": "write SHOW SOURCES, or SHOW TABLES for views and system streams, too",
    "OPERATORS": "use the command `sbon operators`",
    "FRAGMENTS": "use the command `sbon operators`",
    "MEMBERS": "use the command `sbon members`",
    "NODES": "use the command `sbon members`",
    "CLUSTER": "use the command `sbon members`",
    "DATABASES": "there is one name space: write SHOW TABLES",
    "SCHEMAS": "there is one name space: write SHOW TABLES",
    "CATALOGS": "there is one name space: write SHOW TABLES",
    "CONNECTORS": f"sources: {', '.join(SOURCE_CONNECTORS)}; sinks: {', '.join(SINK_CONNECTORS)}",
    "INDEXES": "there are none: write SHOW TABLES",
    "ALL": "settings are in the agent's configuration: `sbon agent --print-config`",
    "PARAMETERS": "settings are in the agent's configuration: `sbon agent --print-config`",
}


@dataclass(frozen=True)
class ShowStatement:
    """A DESCRIBE or SHOW statement."""

    what: str
    """One of LISTS, "columns" or "create"."""
    name: str
    """Name of the source, view or sink; empty for a list."""
    sql: str
    kind: str = ""
    """Kind in SHOW CREATE: "source", "view" or "sink"."""
    places: Places = field(default_factory=dict, compare=False)


def read_show(text: Text, tokens: list[Token]) -> ShowStatement:
    """Reads a DESCRIBE or a SHOW.

    Raises
    ------
    QueryError
        The statement is not supported; points at the place.
    """
    sql = text.slice(tokens)
    words = _words(text, tokens)
    if tokens[0].token_type != TokenType.SHOW:
        return _about(text, sql, "columns", words[1:], f"write {tokens[0].text.upper()} name")
    shown = [word.text.upper() for word in words[1:3]]
    if shown[:1] in (["MATERIALIZED"], ["FULL"]):
        words, shown = [words[0], *words[2:]], shown[1:]
    if not shown:
        raise text.error(tokens[-1].end + 1, "SHOW does not say what to show", _FORMS)
    if shown[0] == "CREATE":
        kinds = words[3:] if [word.text.upper() for word in words[2:4]][:1] == ["MATERIALIZED"] else words[2:]
        if not kinds or kinds[0].text.upper() not in ("SOURCE", "VIEW", "SINK", "TABLE"):
            raise text.error(
                words[1],
                "SHOW CREATE does not say what to show",
                "write SHOW CREATE SOURCE name, SHOW CREATE VIEW name or SHOW CREATE SINK name",
            )
        kind = {"table": "source"}.get(kinds[0].text.lower(), kinds[0].text.lower())
        return replace(_about(text, sql, "create", kinds[1:], f"write SHOW CREATE {kind.upper()} name"), kind=kind)
    if shown[0] in ("COLUMNS", "FIELDS"):
        if len(words) < 3 or words[2].text.upper() not in ("FROM", "IN"):
            raise text.error(words[1], f"SHOW {shown[0]} does not say of what", "write SHOW COLUMNS FROM name")
        return _about(text, sql, "columns", words[3:], "write SHOW COLUMNS FROM name")
    listed = shown[0].lower()
    if listed not in LISTS:
        hint = _INSTEAD.get(shown[0], _FORMS)
        guess = did_you_mean(listed, LISTS) if hint is _FORMS else ""
        raise text.error(words[1], f"SHOW {words[1].text} is not a statement of this dialect", guess if "mean" in guess else hint)
    if len(words) > 2:
        raise text.error(words[2], f"{words[2].text} is one word too many", f"write SHOW {listed.upper()}, which lists all of them")
    return ShowStatement(listed, "", sql)


def _words(text: Text, tokens: list[Token]) -> list[Token]:
    """Returns the tokens of a statement; sqlglot reads everything after SHOW as one text, which is split here."""
    if tokens[0].token_type != TokenType.SHOW or len(tokens) < 2 or tokens[1].token_type != TokenType.STRING:
        return tokens
    rest = text.slice(tokens)[len(tokens[0].text) :]
    shift = tokens[0].end + 1
    words = tokenize(Text(rest)) if rest.strip() else []
    moved = [Token(word.token_type, word.text, word.line, word.col, word.start + shift, word.end + shift) for word in words]
    return [tokens[0], *moved]


def _about(text: Text, sql: str, what: str, words: list[Token], form: str) -> ShowStatement:
    """Reads a statement about one name, which may have dots."""
    if not words:
        raise text.error(len(text.whole.rstrip().rstrip(";")), "the name is missing", form)
    stray = next((word for place, word in enumerate(words) if (place % 2 == 1) != (word.token_type == TokenType.DOT)), None)
    if stray is not None or len(words) % 2 == 0:
        stray = stray or words[-1]
        raise text.error(stray, f"{stray.text} is one word too many", form)
    parts = [word.text if word.token_type == TokenType.IDENTIFIER else word.text.lower() for word in words]
    return ShowStatement(what, "".join(parts), sql, places={NAME: text.place(words[0].start)})
