"""Resolves names in a query to columns of its inputs."""

from dataclasses import dataclass

from sqlglot import exp

from sbon.query.catalog import did_you_mean
from sbon.query.dialect import Text
from sbon.query.literals import identifier
from sbon.query.relation import Relation
from sbon.schema import ColumnType, members_of


@dataclass(frozen=True)
class ScopeColumn:
    """A column that a query can name."""

    alias: str
    """Alias of its input in this query."""
    name: str
    column: str
    """Name of the column in the relation's schema."""
    type: ColumnType
    hidden: bool = False
    """Left out of `SELECT *`."""
    merged: bool = False
    """USING has made the column equal to another of the same name: only a name with its input means this one."""


@dataclass(frozen=True)
class Scope:
    """All columns that a query can name at one place."""

    columns: tuple[ScopeColumn, ...]

    @property
    def aliases(self) -> list[str]:
        """Returns the names of the inputs, each once, in order."""
        return list(dict.fromkeys(column.alias for column in self.columns))

    def visible(self, alias: str | None = None) -> list[ScopeColumn]:
        """Returns the columns that `*` or `alias.*` stands for."""
        return [column for column in self.columns if not column.hidden and alias in (None, column.alias)]

    def path(self, text: Text, tree: exp.Column) -> tuple[ScopeColumn, tuple[str, ...]]:
        """Returns the column that a name means, and the names of fields of structs within it: `place.lat`, `s.place.lat`.

        The part before a point is taken for an input if there is one of this name.

        Raises
        ------
        QueryError
            The name means no column, or more than one.
        """
        names = [identifier(tree.args[part]) for part in ("catalog", "db", "table") if tree.args.get(part) is not None]
        names.append(identifier(tree.this))
        for place in (1, 0):
            if len(names) < 2 or place >= len(names) or (place and names[0] not in self.aliases):
                continue
            found = [column for column in self.columns if column.name == names[place] and (not place or column.alias == names[0])]
            found = [column for column in found if place or not column.merged] or found
            if len(found) > 1 and any(members_of(column.type) for column in found):
                ways = " or ".join(".".join([column.alias, *names]) for column in found)
                raise text.error(tree, f"column {names[0]} is ambiguous", f"write {ways}")
            if len(found) == 1 and (len(names) == place + 1 or members_of(found[0].type)):
                return found[0], tuple(names[place + 1 :])
        return self.resolve(text, tree), ()

    def resolve(self, text: Text, tree: exp.Column) -> ScopeColumn:
        """Returns the column that a name means.

        Raises
        ------
        QueryError
            The name means no column, or more than one.
        """
        name = identifier(tree.this)
        table = identifier(tree.args.get("table")) if tree.args.get("table") is not None else None
        db = tree.args.get("db")
        if table is not None and table not in self.aliases:
            known = did_you_mean(table, self.aliases)
            raise text.error(tree, f"there is no input {identifier(db) + '.' if db is not None else ''}{table} in this FROM", known)
        found = [column for column in self.columns if column.name == name and table in (None, column.alias)]
        if table is None:
            found = [column for column in found if not column.merged] or found
        if len(found) > 1:
            ways = " or ".join(f"{column.alias}.{name}" for column in found)
            raise text.error(tree, f"column {name} is ambiguous", f"write {ways}")
        if not found:
            names = [column.name for column in self.columns if table in (None, column.alias)]
            if table is not None and any(column.name == name and not column.alias for column in self.columns):
                raise text.error(tree, f"there is no column {name} in {table}: it belongs to the whole join", f"write {name} alone")
            listed = names if name.startswith("_") else [n for n in names if not n.startswith("_")]
            raise text.error(tree, f"there is no column {name}" + (f" in {table}" if table else ""), did_you_mean(name, listed))
        return found[0]


def scope_of(relation: Relation, alias: str, hidden: frozenset[str] = frozenset()) -> Scope:
    """Returns the scope with all columns of one input under its name."""
    return Scope(tuple(ScopeColumn(alias, c.name, c.name, c.type, c.name in hidden) for c in relation.schema))
