"""Parses SQL text into statements. Only this module and those it imports load sqlglot.

statements = parse(text)                      # list of CreateSource, CreateView, CreateSink, SelectQuery, DropStatement, ShowStatement
plan(statement, catalog, nodes, here, query)  # sbon.query.planner: CreateView, CreateSink, SelectQuery become plans
"""

from sbon.errors import QueryError
from sbon.extensions import NOTHING, Extensions
from sbon.query.dialect import Text, statements_of, tokenize
from sbon.query.show import ShowStatement
from sbon.query.statements import CreateSink, CreateSource, CreateView, DropStatement, SelectQuery, Statement, read_statement


def parse(text: str, extensions: Extensions = NOTHING) -> list[Statement]:
    """Returns the statements of a text, in order. Sources and sinks may name built-in connectors and those of `extensions`.

    Raises
    ------
    QueryError
        A statement is not of the dialect; points at the line and column. No text raises another error.
    """
    source = Text(text)
    statements = statements_of(tokenize(source))
    if not statements:
        raise QueryError("there is no statement", line=1, column=1, hint="write a SELECT or a CREATE")
    try:
        return [read_statement(source, tokens, extensions) for tokens in statements]
    except RecursionError as error:
        raise QueryError("a statement is nested too deeply", line=1, column=1, hint="split it with CREATE VIEW") from error


__all__ = ["CreateSink", "CreateSource", "CreateView", "DropStatement", "SelectQuery", "ShowStatement", "Statement", "parse"]
