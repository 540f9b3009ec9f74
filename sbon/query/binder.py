"""Binds SELECT trees into logical trees: resolves names, checks types, expands views and subqueries, and refuses everything else with its
place."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from sbon.errors import QueryError
from sbon.extensions import NOTHING, Extensions
from sbon.query.aggregate_calls import has_aggregate
from sbon.query.calls import applied, called_function
from sbon.query.catalog import Catalog, did_you_mean
from sbon.query.dialect import Text
from sbon.query.distinct import grouped_for_distinct
from sbon.query.episode import FORM as EPISODE_FORM
from sbon.query.episode import by_episode, episodes, is_episode
from sbon.query.expression import Cast, Column, Expression, Literal
from sbon.query.foreign import foreign_input, refuse_subqueries
from sbon.query.functions import MaybeType, common_type
from sbon.query.joins import join_inputs
from sbon.query.literals import column_name, identifier
from sbon.query.match import matched
from sbon.query.numbering import assigned, bounded, first_of, limited, numbered, numbering_of
from sbon.query.options import NO_WISHES, Wishes
from sbon.query.over_rows import OverRows, has_over
from sbon.query.relation import Numbered, Relation, Scan, Select, Union
from sbon.query.rewrite import conjuncts
from sbon.query.scalar import Scalars
from sbon.query.scope import Scope, scope_of
from sbon.query.sql import CreateSink, CreateView, SelectQuery, parse
from sbon.query.statements import as_query
from sbon.query.system import SYSTEM_STREAMS, SourceDefinition
from sbon.query.text import expression_text
from sbon.query.top import first_rows, order_of
from sbon.query.unnests import unnest_of, unnested
from sbon.query.window_time import with_window_time
from sbon.query.windows import WindowCall, aggregated, as_table, read_window_call, window_name
from sbon.schema import ColumnType

INPUTS_MAX = 100
"""Most tables in one query after its views are expanded, which bounds views of views."""

_REFUSED = {
    "sort": ("SORT BY is not supported: a stream has no end to sort", "rows of a window leave ordered by its start and keys"),
    "order": ("ORDER BY is not supported here", "put the SELECT together with its ORDER BY in brackets"),
    "limit": ("LIMIT is not supported here", "put the SELECT together with its LIMIT in brackets"),
    "offset": ("OFFSET is not supported: a stream has no end", "use WHERE to leave rows out"),
    "fetch": ("FETCH is not supported: a stream has no end", "use `sbon tail QUERY --limit N`"),
    "qualify": ("QUALIFY is not supported", "number in a SELECT in brackets, and write WHERE n = 1 around it"),
    "windows": ("WINDOW is not supported", "write the definition into the brackets of each OVER (...)"),
    "version": (
        "FOR SYSTEM_TIME AS OF is not supported here: it belongs to a table after JOIN",
        "write FROM s JOIN sites FOR SYSTEM_TIME AS OF s.ts ON s.site = sites.id",
    ),
    "replace": ("REPLACE is not supported here", "name the columns that you want"),
    "rename": ("RENAME is not supported here", "name the columns that you want, with AS"),
    "laterals": ("LATERAL is not supported", "JOIN the other stream within an interval"),
    "pivots": ("PIVOT is not supported", "use CASE within aggregates"),
    "match": ("MATCH_RECOGNIZE is not supported here", "put the SELECT that it belongs to in brackets"),
    "into": ("SELECT INTO is not supported", "use CREATE SINK"),
    "locks": ("FOR UPDATE is not supported", "streams are only read"),
    "sample": ("TABLESAMPLE is not supported", "use WHERE"),
}
_REFUSED_ORDER = {part: place for place, part in enumerate(_REFUSED)}
_SELECT_PARTS = (
    "expressions",
    "distinct",
    "order",
    "limit",
    "from_",
    "joins",
    "where",
    "group",
    "having",
    "with_",
    "kind",
    "hint",
    "match",
)


@dataclass
class Environment:
    """Everything that names in FROM can refer to, and a count of the inputs bound so far."""

    catalog: Catalog
    label_names: tuple[str, ...]
    """Labels that at least one node has, sorted."""
    extensions: Extensions = NOTHING
    """User functions that may be called."""
    inputs: int = 0
    open_views: list[str] = field(default_factory=list)
    wishes: Wishes = NO_WISHES
    """Wishes of the views expanded so far."""


@dataclass(frozen=True)
class Binder:
    """Binds the SELECTs of one text; `tables` holds the common table expressions in scope."""

    environment: Environment
    text: Text
    tables: Mapping[str, tuple[exp.Query, "Binder"]]

    def query(self, tree: exp.Expr) -> Relation:
        """Returns the relation of a SELECT, a UNION ALL, or either in brackets.

        Raises
        ------
        QueryError
            The tree is not of the dialect; points at the place.
        """
        if isinstance(tree, exp.Subquery):
            self.refuse_parts(tree, ("this", "alias", "with_"))
            return self._with(tree).query(tree.this)
        if isinstance(tree, exp.SetOperation):
            return self._with(tree)._union(tree)
        if isinstance(tree, exp.Select):
            return self._with(tree)._select(tree)
        raise self.text.error(tree, "a SELECT is expected here", "write SELECT ... FROM ...")

    def _with(self, tree: exp.Query) -> "Binder":
        clause = tree.args.get("with_")
        if clause is None:
            return self
        if clause.args.get("recursive"):
            raise self.text.error(clause, "WITH RECURSIVE is not supported", "a stream cannot feed itself")
        binder = self
        for item in clause.expressions:
            name = identifier(item.args["alias"].this)
            if item.args["alias"].args.get("columns"):
                raise self.text.error(item, f"column names of {name} are not expected here", "name columns in its SELECT, with AS")
            binder = replace(binder, tables={**binder.tables, name: (as_query(self.text, item.this), binder)})
        return binder

    def refuse_parts(self, tree: exp.Expr, known: tuple[str, ...]) -> None:
        """Raises QueryError at the first part of a tree that is not in `known`, in the order in which clauses are written.

        Clause order is used because the parser's own order of some parts differs from process to process.
        """
        for part, value in sorted(tree.args.items(), key=lambda item: _REFUSED_ORDER.get(item[0], len(_REFUSED))):
            if part in known or value in (None, False, [], ""):
                continue
            where = value[0] if isinstance(value, list) else value
            message, hint = _REFUSED.get(part, (f"{part.strip('_').upper()} is not supported", "leave it out"))
            if part == "pivots" and where.args.get("unpivot"):
                message, hint = "UNPIVOT is not supported", "UNION ALL one SELECT for each column"
            keyword = message.partition(" is ")[0]
            raise self.text.keyword_error(where if isinstance(where, exp.Expr) else tree, keyword, message, hint)

    # UNION ALL

    def _union(self, tree: exp.SetOperation) -> Relation:
        self.refuse_parts(tree, ("this", "expression", "distinct", "with_"))
        side, name = tree.expression, tree.key.upper()
        if not isinstance(tree, exp.Union):
            hint = "JOIN the streams within an interval"
            if name == "EXCEPT":
                hint = "LEFT JOIN the streams within an interval, and write WHERE other.key IS NULL"
            raise self.text.keyword_error(side, name, f"{name} is not supported", hint)
        if tree.args.get("distinct"):
            message = "UNION without ALL is not supported: it would keep every row for ever"
            raise self.text.keyword_error(side, name, message, "write UNION ALL")
        sides: list[exp.Expr] = []
        node: exp.Expr = tree
        # Long chains nest to the left; they are flattened without recursion.
        while isinstance(node, exp.Union) and not node.args.get("distinct") and (node is tree or node.args.get("with_") is None):
            sides.append(node.expression)
            node = node.this
        sides.append(node)
        relations = [self.query(side) for side in reversed(sides)]
        bounded(relations)
        return Union(self._same_types(list(reversed(sides)), relations))

    def _same_types(self, trees: list[exp.Expr], relations: list[Relation]) -> tuple[Relation, ...]:
        first = relations[0].schema
        for tree, relation in zip(trees, relations, strict=True):
            if len(relation.schema) != len(first):
                hint = "give all of them the same columns"
                raise self.text.error(tree, f"UNION ALL of {len(first)} columns and {len(relation.schema)}", hint)
        types: list[ColumnType] = []
        for index, column in enumerate(first):
            try:
                common = common_type("union", [_type_at(relation, index) for relation in relations])
            except QueryError as error:
                raise self.text.error(
                    trees[-1], f"column {column.name} has other types in other parts of the UNION ALL", error.hint
                ) from None
            types.append(common or column.type)
        return tuple(_widened(relation, types) for relation in relations)

    # FROM

    def table(self, tree: exp.Expr, *, window: bool = True, numbered: bool = False) -> tuple[Relation, Scope, WindowCall | None]:
        """Binds one input of a FROM: its relation, its names, and the window around it if there is one.

        With `numbered`, the input may be a SELECT with ROW_NUMBER() whose limit stands in the enclosing query; otherwise that is an error.
        """
        relation, scope, call = self._table(tree, window=window)
        if not numbered:
            bounded([relation])
        return relation, scope, call

    def count_input(self, tree: exp.Expr) -> None:
        """Counts one more input of the query, views included; raises QueryError beyond INPUTS_MAX."""
        self.environment.inputs += 1
        if self.environment.inputs > INPUTS_MAX:
            raise self.text.error(tree, f"more than {INPUTS_MAX} inputs, those of its views included", "split the query")

    def _table(self, tree: exp.Expr, *, window: bool) -> tuple[Relation, Scope, WindowCall | None]:
        self.count_input(tree)
        alias_tree = tree.args.get("alias")
        if (foreign := foreign_input(self.text, tree)) is not None:
            raise foreign
        function = called_function(tree.this, self.environment.extensions)
        if function is None and isinstance(tree, exp.Table) and is_episode(tree.this):
            return *self._episodes(tree.this, alias_tree), None
        if function is None and isinstance(tree, exp.Table) and isinstance(tree.this, exp.Func):
            window_name(self.text, tree.this)
        if alias_tree is not None and alias_tree.args.get("columns"):
            raise self.text.error(alias_tree, "column names are not expected here", "name columns in the SELECT, with AS")
        alias = identifier(alias_tree.this) if alias_tree is not None and alias_tree.this is not None else None
        if isinstance(tree, exp.Subquery):
            relation = self.query(tree)
            return relation, scope_of(relation, alias or "", frozenset()), None
        if not isinstance(tree, exp.Table):
            raise self.text.error(tree, "a source, a view or a SELECT in brackets is expected", "write FROM name")
        self.refuse_parts(tree, ("this", "alias", "db", "catalog", "joins"))
        if tree.args.get("joins"):
            raise self.text.error(tree, "joins in brackets are not supported", "write a SELECT in the brackets")
        if function is not None:
            relation, _, _ = self.table(as_table(self.text, tree.this, f"{function}(input, name => value)"), window=False)
            relation = applied(self.text, tree.this, function, self.environment.extensions, relation)
            return relation, scope_of(relation, alias or function), None
        if isinstance(tree.this, exp.Func):
            if not window:
                raise self.text.error(
                    tree, "a window cannot be joined with something else", "aggregate it in a SELECT in brackets and join that"
                )
            call = read_window_call(self.text, tree.this)
            relation, scope, _ = self.table(call.input, window=False)
            names = [column.alias for column in scope.columns[:1]]
            return relation, Scope(tuple(replace(c, alias=alias or names[0]) for c in scope.columns)), call
        return (*self._named(tree, alias), None)

    def _episodes(self, call: exp.Anonymous, alias: exp.Expr | None) -> tuple[Relation, Scope]:
        relation, scope, _ = self.table(as_table(self.text, call, EPISODE_FORM), window=False)
        return episodes(self.text, call, relation, scope, alias)

    def _named(self, tree: exp.Table, alias: str | None) -> tuple[Relation, Scope]:
        if any(isinstance(tree.args.get(part), str) for part in ("this", "db", "catalog")):
            raise self.text.error(tree, "a part of the name is missing", "write FROM name")
        parts = [identifier(tree.args[part]) for part in ("catalog", "db") if tree.args.get(part) is not None]
        last = identifier(tree.this)
        name = ".".join([*parts, last])
        if not parts and name in self.tables:
            query, binder = self.tables[name]
            relation = binder.query(query)
            return relation, scope_of(relation, alias or last)
        definition = self.environment.catalog.source(name)
        if definition is not None:
            scan = self._scan(definition)
            return scan, scope_of(scan, alias or last, frozenset(scan.hidden))
        entry = self.environment.catalog.get(name)
        if entry is None or entry.kind != "view":
            raise self._no_table(tree, name, "" if entry is None else entry.kind)
        relation = self._view(tree, name, entry.sql)
        return relation, scope_of(relation, alias or last)

    def _no_table(self, tree: exp.Table, name: str, kind: str) -> QueryError:
        if kind:
            return self.text.error(
                tree, f"{name} is a {kind}, nothing can be read from it", "read from the source or view that it is made of"
            )
        known = [*self.environment.catalog.names("source", "view"), *self.tables, *SYSTEM_STREAMS]
        return self.text.error(tree, f"there is no source or view {name}", did_you_mean(name, known))

    def _scan(self, definition: SourceDefinition) -> Scan:
        declared = {column.name for column in definition.columns}
        hidden = ["_node", *(f"_{label}" for label in self.environment.label_names if label != "node")]
        return Scan(definition, tuple(name for name in hidden if name not in declared))

    def _view(self, tree: exp.Table, name: str, sql: str) -> Relation:
        views = self.environment.open_views
        if name in views:
            raise self.text.error(tree, f"view {name} refers to itself: {' -> '.join([*views, name])}", "drop one of them")
        views.append(name)
        try:
            return bind_view(sql, self.environment)
        except QueryError as error:
            raise self.text.error(tree, f"view {name} cannot be used: {error.message}", error.hint) from error
        finally:
            views.pop()

    # SELECT

    def _select(self, tree: exp.Select) -> Relation:
        self.refuse_parts(tree, _SELECT_PARTS)
        for clause in (tree.args.get("where"), tree.args.get("having")):
            if clause is not None:
                refuse_subqueries(self.text, clause)
        tree, numbering = numbering_of(self.text, with_window_time(tree))
        if numbering is not None:
            if has_over(tree):
                raise self.text.error(numbering.tree, f"OVER beside {numbering.what}", "number in a SELECT in brackets around it")
            select, scalars = self._rows(tree, numbering.trees, numbered=True)
            rows = numbered(self.text, numbering, select, scalars)
            return rows if numbering.name is not None else first_of(rows, 1)
        order = order_of(self.text, tree)
        select, scalars = self._rows(tree, [item.tree for item in order])
        return first_rows(self.text, tree, select, scalars, order) if order else select

    def _rows(self, tree: exp.Select, order: list[exp.Expr], *, numbered: bool = False) -> tuple[Select, Scalars]:
        """Binds a SELECT without its LIMIT; returns its rows and the binder of its values.

        `order` holds further expressions that the caller binds with that binder: of ORDER BY, or of a numbering.
        """
        tree = by_episode(self.text, tree)
        source = tree.args.get("from_")
        if source is None:
            raise self.text.error(tree, "FROM is missing", "a stream query reads from a source: SELECT ... FROM name")
        joins = tree.args.get("joins") or []
        relation, scope, call = self.table(source.this, numbered=not joins)
        if (clause := tree.args.get("match")) is not None:
            if call is not None or joins:
                raise self.text.error(clause, "MATCH_RECOGNIZE beside a window or a join", "put one of them in a SELECT in brackets")
            relation, scope = matched(self.text, clause, relation, scope)
        if any(unnest_of(join.this) for join in joins):
            (relation, scope), joins = unnested(self, joins, relation, scope), []
        where = tree.args.get("where")
        conditions: tuple[Expression, ...] = ()
        if call is not None and not (joins or tree.args.get("group") or tree.args.get("distinct") or has_aggregate(tree)):
            relation, scope = assigned(self.text, call, relation, scope, numbered=numbered)
            call = None
        if joins:
            relation, scope, conditions = join_inputs(self, relation, scope, call, joins, None if where is None else where.this)
            call = None
        elif where is not None:
            conditions = conjuncts(Scalars(self.text, scope).condition(where.this, "WHERE"))
        if isinstance(relation, Numbered):
            relation, conditions = limited(self.text, relation, where, conditions)
        tree = grouped_for_distinct(self.text, tree, relation, scope, call)
        if call is None and tree.args.get("group") is None and not has_aggregate(tree):
            if tree.args.get("having") is not None:
                raise self.text.error(tree.args["having"], "HAVING without GROUP BY", "use WHERE")
            if has_over(tree):
                over = OverRows(self.text, scope, relation)
                columns = self._columns(tree, scope, over)
                return over.select(conditions, columns), over
            plain = Scalars(self.text, scope)
            return Select(relation, conditions, self._columns(tree, scope, plain)), plain
        if conditions:
            relation = Select(relation, conditions, tuple((c.name, Column(c.name), c.type) for c in relation.schema))
        window, inner, scalars = aggregated(self.text, tree, relation, scope, call, order)
        having = tree.args.get("having")
        kept = () if having is None else conjuncts(scalars.condition(having.this, "HAVING"))
        return Select(window, kept, self._columns(tree, inner, scalars)), scalars

    def _columns(self, tree: exp.Select, scope: Scope, scalars: Scalars) -> tuple[tuple[str, Expression, ColumnType], ...]:
        """Binds the SELECT list, with `*` expanded."""
        columns: list[tuple[str, Expression, ColumnType]] = []
        where: list[exp.Expr] = []
        for item in tree.expressions:
            added = self._star(item, scope) if item.is_star else [self._column(item, scalars)]
            columns.extend(added)
            where.extend([item] * len(added))
        seen: set[str] = set()
        for item, (name, _, _) in zip(where, columns, strict=True):
            if name in seen:
                raise self.text.error(
                    item, f"two columns are named {name}", "name one of them with AS; name columns one by one instead of *"
                )
            seen.add(name)
        return tuple(columns)

    def _star(self, item: exp.Expr, scope: Scope) -> list[tuple[str, Expression, ColumnType]]:
        if not isinstance(item, exp.Star) and not (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            raise self.text.error(item, "* is not a value", "name the column")
        star = item if isinstance(item, exp.Star) else item.this
        self.refuse_parts(star, ("except_",))
        alias = identifier(item.args["table"]) if isinstance(item, exp.Column) and item.args.get("table") is not None else None
        if alias is not None and alias not in scope.aliases:
            raise self.text.error(item, f"there is no input {alias} in this FROM", did_you_mean(alias, scope.aliases))
        visible = scope.visible(alias)
        left_out = [identifier(part.this if isinstance(part, exp.Column) else part) for part in star.args.get("except_") or ()]
        for name in left_out:
            if all(column.name != name for column in visible):
                raise self.text.error(star, f"there is no column {name} to leave out", did_you_mean(name, [c.name for c in visible]))
        kept: list[tuple[str, Expression, ColumnType]] = [
            (column.name, Column(column.column), column.type) for column in visible if column.name not in left_out
        ]
        if not kept:
            raise self.text.error(item, "EXCEPT leaves out all columns", "name the columns that you want")
        return kept

    def _column(self, item: exp.Expr, scalars: Scalars) -> tuple[str, Expression, ColumnType]:
        value = item.this if isinstance(item, exp.Alias) else item
        expression, type_ = scalars.value(value)
        if isinstance(item, exp.Alias):
            return column_name(self.text, item.args["alias"]), expression, type_
        if isinstance(value, exp.Column | exp.Dot):
            return identifier(value.this if isinstance(value, exp.Column) else value.expression), expression, type_
        return expression_text(expression), expression, type_


def _type_at(relation: Relation, index: int) -> MaybeType:
    """Returns the type of a column; None for a bare NULL, which is compatible with every type."""
    if isinstance(relation, Select):
        value = relation.columns[index][1]
        if isinstance(value, Literal) and value.value is None:
            return None
    return relation.schema[index].type


def _widened(relation: Relation, types: list[ColumnType]) -> Relation:
    """Returns the relation with integers widened to floats where the union has floats, and NULLs cast to the union's types."""
    if [column.type for column in relation.schema] == types:
        return relation
    columns: list[tuple[str, Expression, ColumnType]] = []
    for index, (column, type_) in enumerate(zip(relation.schema, types, strict=True)):
        value: Expression = Column(column.name)
        if column.type is not type_:
            value = Literal(None, type_) if _type_at(relation, index) is None else Cast(value, type_)
        columns.append((column.name, value, type_))
    return Select(relation, (), tuple(columns))


def bind(
    statement: SelectQuery | CreateSink | CreateView,
    catalog: Catalog,
    labels: Mapping[str, Mapping[str, str]],
    extensions: Extensions = NOTHING,
) -> tuple[Relation, Wishes]:
    """Binds a statement; returns its relation, and its wishes merged with those of its views.

    Parameters
    ----------
    labels : labels of the living nodes, by node

    Raises
    ------
    QueryError
        The statement is not of the dialect, or names something that does not exist; points at the place.
    """
    names = tuple(sorted({label for of_node in labels.values() for label in of_node}))
    query = statement if isinstance(statement, SelectQuery) else statement.query
    environment = Environment(catalog, names, extensions)
    try:
        relation = Binder(environment, query.text, {}).query(query.tree)
    except RecursionError as error:
        raise QueryError("the query is nested too deeply", hint="split it with CREATE VIEW") from error
    bounded([relation])
    own = NO_WISHES if isinstance(statement, SelectQuery) else statement.wishes
    return relation, environment.wishes.below(own)


def bind_view(sql: str, environment: Environment) -> Relation:
    """Binds a view from its text in the catalogue."""
    statements = parse(sql)
    if len(statements) != 1 or not isinstance(statements[0], CreateView):
        raise QueryError("its text in the catalogue is no CREATE VIEW")
    query = statements[0].query
    environment.wishes = statements[0].wishes.below(environment.wishes)
    return Binder(environment, query.text, {}).query(query.tree)
