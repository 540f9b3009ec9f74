"""Binds FROM EPISODE(...): the rows from the one that opens an episode to the one that closes it.

    SELECT * FROM EPISODE(cameras, ts,
        opens => place = 'L1', closes => place = 'L2' AND plate = opening.plate, within => INTERVAL '15 minutes') AS e

Each row that meets `opens` begins an episode of its own. Episodes may overlap; a row is in the answer once for each of its episodes.
EPISODE becomes a MATCH_RECOGNIZE with the pattern `opening (other*? closing | other*)`, tried from each row; with GROUP BY episode, it is
ONE ROW PER MATCH.
"""

from functools import cache

from sqlglot import exp

from sbon.query.dialect import Text
from sbon.query.literals import identifier
from sbon.query.match import matched
from sbon.query.relation import Relation
from sbon.query.scope import Scope
from sbon.query.statements import SelectQuery

FORM = "write EPISODE(stream, ts, opens => x = 1, closes => x = 2 AND k = opening.k, within => INTERVAL '15 minutes')"
_CLAUSE = """SELECT * FROM s MATCH_RECOGNIZE (ORDER BY ts
    MEASURES MATCH_NUMBER() AS episode, FIRST(ts) AS opened, FINAL LAST(closing.ts) AS closed
    ALL ROWS PER MATCH AFTER MATCH SKIP TO NEXT ROW
    PATTERN (opening (other*? closing | other*)) WITHIN INTERVAL '1 second' DEFINE opening AS TRUE, closing AS TRUE)"""
_NAMES = ("opens", "closes", "within")
_KEYS = ("episode", "opened", "closed")


def is_episode(tree: exp.Expr) -> bool:
    """Tells whether an input of FROM is EPISODE(...)."""
    return isinstance(tree, exp.Anonymous) and str(tree.this).upper() == "EPISODE"


def episodes(text: Text, call: exp.Anonymous, relation: Relation, scope: Scope, alias: exp.Expr | None) -> tuple[Relation, Scope]:
    """Returns the rows of the episodes, and the scope of their columns.

    Parameters
    ----------
    call : EPISODE(...)
    relation, scope : input of the call
    alias : alias of the call in FROM; None if it has none

    Raises
    ------
    QueryError
        An argument is missing or not of the form; points at the place.
    """
    places = [one for one in call.expressions if not isinstance(one, exp.Kwarg)]
    named: dict[str, exp.Expr] = {}
    for one in call.expressions:
        if not isinstance(one, exp.Kwarg):
            continue
        name = one.this.name.lower()
        if name not in _NAMES or name in named:
            raise text.error(one.expression, f"EPISODE takes {', '.join(_NAMES)}, each once; {name} is given twice or unknown", FORM)
        named[name] = one.expression
    missing = [name for name in _NAMES if name not in named]
    if missing or len(places) != 2 or not isinstance(places[1], exp.Column):
        what = f"{missing[0]} is missing in EPISODE" if missing else "EPISODE takes a stream and its event time"
        raise text.error(call, what, FORM)
    clause = _template().copy()
    start = int(call.meta["start"])
    for node in clause.walk():
        node.meta["start"] = start
    for key in ("pattern", "rows", "after"):
        clause.meta[key] = [(word[0], start, *word[2:]) for word in clause.meta[key]]
    clause.meta["pattern_end"] = start
    for column in list(clause.find_all(exp.Column)):
        if column.name == "ts":
            time = places[1].copy()
            time.set("table", column.args.get("table"))
            column.replace(time)
    if "grouped" in call.meta:
        _group(clause, call.meta["grouped"], "" if alias is None else identifier(alias.this), start)
    opening, closing = clause.args["define"]
    opening.set("this", named["opens"].copy())
    closing.set("this", named["closes"].copy())
    clause.set("within", named["within"].copy())
    clause.set("alias", None if alias is None else alias.copy())
    return matched(text, clause, relation, scope)


def by_episode(text: Text, tree: exp.Select) -> exp.Select:
    """Turns a SELECT with GROUP BY episode into a SELECT of measures, which `episodes` computes; returns any other SELECT unchanged.

    Raises
    ------
    QueryError
        The SELECT groups rows of EPISODE by something else, or has WHERE or HAVING.
    """
    source, group = tree.args.get("from_"), tree.args.get("group")
    if source is None or group is None or not isinstance(source.this, exp.Table) or not is_episode(source.this.this):
        return tree
    others = [key for key in group.expressions if not isinstance(key, exp.Column) or key.name.lower() not in _KEYS]
    if others or not any(key.name.lower() == "episode" for key in group.expressions):
        raise text.error(others[0] if others else group, "rows of EPISODE are grouped by their episode", "write GROUP BY episode")
    for clause, hint in (
        ("where", "filter the stream within EPISODE, in brackets"),
        ("having", "filter around this SELECT, in brackets"),
    ):
        if tree.args.get(clause) is not None:
            raise text.error(tree.args[clause], f"{clause.upper()} beside GROUP BY episode", hint)
    found = tree.copy()
    names = []
    for item in found.expressions:
        if not isinstance(item, exp.Alias | exp.Column) or isinstance(item.this, exp.Star):
            raise text.error(item, "a value by episode needs a name", "write COUNT(*) AS n")
        for column in item.find_all(exp.Column):
            if column.name.lower() not in _KEYS and column.find_ancestor(exp.AggFunc) is None:
                what = f"{text.written(column)} is neither aggregated nor one of {', '.join(_KEYS)}"
                raise text.error(column, what, "aggregate it, or write LAST(x)")
        names.append(item.args["alias"] if isinstance(item, exp.Alias) else item.this)
    values = [item.this if isinstance(item, exp.Alias) else item for item in found.expressions]
    found.args["from_"].this.this.meta["grouped"] = list(zip(values, names, strict=True))
    columns = []
    for name in names:
        column = exp.Column(this=name.copy())
        column.meta.update(name.meta)
        columns.append(column)
    found.set("expressions", columns)
    found.set("group", None)
    return found


def _group(clause: exp.MatchRecognize, grouped: list[tuple[exp.Expr, exp.Expr]], alias: str, start: int) -> None:
    """Replaces the measures of a clause by the grouped values."""
    own = {measure.alias: measure.this for measure in clause.args["measures"]}

    def measured(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return node
        if node.table and node.table.lower() == alias:
            node.set("table", None)
        return own[node.name.lower()].copy() if node.name.lower() in own and not node.table else node

    measures = []
    for value, name in grouped:
        measure = exp.Alias(this=value.copy().transform(measured), alias=name.copy())
        measure.meta["start"] = start
        measures.append(measure)
    clause.set("measures", measures)
    clause.meta["rows"] = [(word, start, True, False) for word in ("ONE", "ROW", "PER", "MATCH")]


@cache
def _template() -> exp.MatchRecognize:
    from sbon.query.sql import parse

    (statement,) = parse(_CLAUSE)
    assert isinstance(statement, SelectQuery)
    found = statement.tree.args["match"]
    assert isinstance(found, exp.MatchRecognize)
    return found
