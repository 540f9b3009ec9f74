"""Binds MATCH_RECOGNIZE: rows of each partition that match a pattern of conditions.

    SELECT * FROM s MATCH_RECOGNIZE (
        PARTITION BY card ORDER BY ts
        MEASURES a.ts AS began, COUNT(f.*) AS failures
        ONE ROW PER MATCH
        PATTERN (f{3,} w) WITHIN INTERVAL '5 minutes'
        DEFINE f AS NOT ok, w AS ok AND amount > 100) AS m

Conditions and measures are expressions over *operands*: values of single rows of the match, aggregates over some of them, and its number.
"""

from dataclasses import dataclass, replace

import msgspec
from sqlglot import exp

from sbon.query.aggregate_calls import aggregate_function, read_aggregate
from sbon.query.aggregate_forms import aggregated
from sbon.query.catalog import did_you_mean
from sbon.query.dialect import Text
from sbon.query.expression import Column, Expression
from sbon.query.fold import fold
from sbon.query.limits import PRECEDING_MAX
from sbon.query.literals import column_name, identifier, interval_of
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.matched import ROW_LABEL, VARIABLES_MAX, MatchNumber, MatchParams, Navigation, Operand, Tally
from sbon.query.relation import Match, Relation, Select
from sbon.query.rewrite import TRUE, columns_of
from sbon.query.row_pattern import Excluded, Pattern, endless, may_skip, walk
from sbon.query.row_pattern_text import PatternReader, Word
from sbon.query.scalar import Scalars
from sbon.query.scalar_calls import Bound
from sbon.query.scope import Scope, ScopeColumn
from sbon.schema import ColumnType

_NAVIGATIONS = ("first", "last", "prev", "next", "classifier", "match_number", "match_rowtime")
_WITH_SEMANTICS = ("first", "last", "classifier")
_SEMANTICS = "FIRST, LAST, CLASSIFIER and aggregates"
_ROWS = "write ONE ROW PER MATCH or ALL ROWS PER MATCH"
_TIMEOUTS = ("SHOW", "TIMEOUT", "MATCHES")
_SKIP = "write AFTER MATCH SKIP PAST LAST ROW, TO NEXT ROW, TO FIRST b or TO LAST b"
_WITHIN = "add WITHIN INTERVAL '10 minutes' after PATTERN (...)"
_MODES: dict[tuple[str, ...], tuple[bool, bool, bool]] = {
    (): (False, True, False),
    ("ONE", "ROW", "PER", "MATCH"): (False, True, False),
    ("ALL", "ROWS", "PER", "MATCH"): (True, True, False),
    ("ALL", "ROWS", "PER", "MATCH", "SHOW", "EMPTY", "MATCHES"): (True, True, False),
    ("ALL", "ROWS", "PER", "MATCH", "OMIT", "EMPTY", "MATCHES"): (True, False, False),
    ("ALL", "ROWS", "PER", "MATCH", "WITH", "UNMATCHED", "ROWS"): (True, True, True),
}
"""Row modes: whether the output has all rows of a match, matches without a row, and rows without a match."""


def matched(text: Text, tree: exp.MatchRecognize, relation: Relation, scope: Scope) -> tuple[Relation, Scope]:
    """Binds a clause; returns its output, and the scope of the output's columns.

    Parameters
    ----------
    relation, scope : input of the clause

    Raises
    ------
    QueryError
        The clause is not of the dialect; points at the place.
    """
    return _Clause(text, tree, relation, scope).bound()


class _Clause:
    """Binds one MATCH_RECOGNIZE."""

    def __init__(self, text: Text, tree: exp.MatchRecognize, relation: Relation, scope: Scope) -> None:
        self.text = text
        self.tree = tree
        self.relation = relation
        self.scope = scope
        words = [Word(*word) for word in tree.meta["pattern"]]
        reader = PatternReader(text, words, tree.meta["pattern_end"])
        self.pattern: Pattern = reader.read()
        self.variables = tuple(reader.variables)
        if not self.variables:
            raise text.error(tree.meta["pattern_end"], "PATTERN has no variable", "write PATTERN (A B+)")
        if len(self.variables) > VARIABLES_MAX:
            raise text.error(words[0].start, f"PATTERN has {len(self.variables)} variables, expected at most {VARIABLES_MAX}")
        self.sets: dict[str, tuple[int, ...]] = {name: (place,) for place, name in enumerate(self.variables)}
        """Variables and subsets by name: the places of their variables."""
        self.computed: dict[str, tuple[Expression, ColumnType]] = {}
        """Expressions in PARTITION BY, by name."""
        for word, members in tree.meta["subsets"]:
            self._subset(Word(*word), [Word(*member) for member in members])

    def bound(self) -> tuple[Relation, Scope]:
        """Returns the relation of the clause, and the scope of its columns."""
        time, ties, descending = self._order()
        partition = [self._partition_column(part) for part in self.tree.args.get("partition_by") or ()]
        within = self._within()
        all_rows, empty, unmatched, timeouts = self._mode(within)
        values = _Operands(self, all_rows)
        conditions = self._conditions(values)
        self._refuse_endless(conditions, within)
        measures = self._measures(values)
        if not (measures or partition or all_rows):
            what = "MATCH_RECOGNIZE gives no column: there is neither PARTITION BY nor MEASURES"
            raise self.text.error(self.tree, what, "write MEASURES a.x AS x")
        skip_to, skip_variables = self._skip()
        visible = self.scope.visible()
        passed = list(dict.fromkeys([*partition, time, *ties, *(column.column for column in visible)])) if all_rows else None
        used = dict.fromkeys([time, *partition, *ties, *(passed or ()), *values.columns()])
        types = {column.name: column.type for column in self.relation.schema}
        columns = (self.computed.get(name) or (Column(name), types[name]) for name in used)
        inner = Select(self.relation, (), tuple((name, *column) for name, column in zip(used, columns, strict=True)))
        params = MatchParams(
            time,
            tuple(partition),
            (*ties, *(name for name in used if name not in ties)),
            self.variables,
            tuple(conditions),
            self.pattern,
            tuple(values.operands),
            tuple((name, value) for name, value, _ in measures),
            None if passed is None else tuple(passed),
            skip_to,
            skip_variables,
            within,
            empty,
            unmatched,
            timeouts,
            descending=descending,
        )
        found = Match(inner, params, tuple(type_ for _, _, type_ in measures), tuple(values.types.items()))
        return found, self._names(found, partition, passed, {name for name, _, _ in measures})

    def _names(self, found: Match, partition: list[str], passed: list[str] | None, measures: set[str]) -> Scope:
        alias_tree = self.tree.args.get("alias")
        alias = identifier(alias_tree.this) if alias_tree is not None and alias_tree.this is not None else ""
        typed = {column.column: column.name for column in self.scope.columns} | {name: name for name in self.computed}
        for name in partition if passed is None else passed:
            if typed[name] in measures:
                what = f"a measure is named {typed[name]}, as a column of the rows"
                raise self.text.error(self.tree, what, "give it another name, with AS")
        return Scope(tuple(ScopeColumn(alias, typed.get(c.name, c.name), c.name, c.type) for c in found.schema))

    # -------------------------------------------------------------------------------------------------- partition and order

    def _partition_column(self, tree: exp.Expr) -> str:
        """Returns the name of a partition column; an expression needs a name."""
        value = tree.this if isinstance(tree, exp.Alias) else tree
        bound = Scalars(self.text, self.scope).key(value, "PARTITION BY")
        if value is tree and isinstance(tree, exp.Column):
            return self.scope.resolve(self.text, tree).column
        if value is tree:
            hint = f"write PARTITION BY {self.text.written(tree)[:60]} AS name"
            raise self.text.error(tree, "PARTITION BY an expression needs a name in MATCH_RECOGNIZE", hint)
        name = column_name(self.text, tree.args["alias"])
        taken = {column.name for column in self.relation.schema} | {column.name for column in self.scope.columns} | set(self.computed)
        if name in taken:
            what = f"{self.text.written(value)[:60]} AS {name}: there is a column {name} already"
            raise self.text.error(tree, what, "give the expression of PARTITION BY another name")
        self.computed[name] = bound
        return name

    def _order(self) -> tuple[str, list[str], tuple[str, ...]]:
        """Returns the event time, further columns for rows of one instant, and those of them that are descending."""
        order = self.tree.args.get("order")
        items = list(order.expressions) if order is not None else []
        bases = [column for column in self.scope.columns if self.relation.times.get(column.column) == (column.column, 0)]
        hint = f"write ORDER BY {bases[0].name}" if bases else "declare WATERMARK FOR a column in CREATE SOURCE, and keep it in subqueries"
        if not items:
            raise self.text.error(self.tree, "MATCH_RECOGNIZE needs ORDER BY the event time", hint)
        found: list[str] = []
        descending: list[str] = []
        for item in items:
            is_descending = bool(item.args.get("desc"))
            if not isinstance(item.this, exp.Column) or bool(item.args.get("nulls_first")) != is_descending:
                what = "ORDER BY of MATCH_RECOGNIZE takes columns, with NULLs last, or with DESC first"
                raise self.text.error(item, what, hint)
            name = self.scope.resolve(self.text, item.this).column
            if is_descending and not found:
                raise self.text.error(item, "MATCH_RECOGNIZE orders by the event time, ascending", hint)
            if is_descending and name not in found:
                descending.append(name)
            found.append(name)
        if self.relation.times.get(found[0]) != (found[0], 0):
            what = f"{identifier(items[0].this.this)} is not the event time, by which MATCH_RECOGNIZE orders first"
            raise self.text.error(items[0], what, hint)
        for item in items[1:]:
            Scalars(self.text, self.scope).key(item.this, "ORDER BY")
        return found[0], list(dict.fromkeys(found[1:])), tuple(descending)

    # ------------------------------------------------------------------------------------------------------ words of the clause

    def _mode(self, within: int | None) -> tuple[bool, bool, bool, bool]:
        words = [Word(*word) for word in self.tree.meta["rows"]]
        upper = tuple(word.text.upper() for word in words)
        timeouts = upper[-3:] == _TIMEOUTS
        mode = _MODES.get((upper[:-3] or ("ONE", "ROW", "PER", "MATCH")) if timeouts else upper)
        if mode is None:
            raise self.text.error(words[0].start, f"{' '.join(word.text for word in words)[:60]} is not expected here", _ROWS)
        excluded = any(isinstance(part, Excluded) for part in walk(self.pattern))
        if mode[2] and excluded:
            raise self.text.error(words[0].start, "WITH UNMATCHED ROWS beside {- -} in PATTERN", "leave one of them out")
        if timeouts and within is None:
            raise self.text.error(words[-3].start, "SHOW TIMEOUT MATCHES needs a time limit", _WITHIN)
        if timeouts and mode[2]:
            raise self.text.error(words[-3].start, "SHOW TIMEOUT MATCHES beside WITH UNMATCHED ROWS", "leave one of them out")
        return *mode, timeouts

    def _skip(self) -> tuple[str, tuple[int, ...]]:
        words = [Word(*word) for word in self.tree.meta["after"]]
        upper = [word.text.upper() for word in words]
        if not words or upper == ["AFTER", "MATCH", "SKIP", "PAST", "LAST", "ROW"]:
            return "past", ()
        if upper == ["AFTER", "MATCH", "SKIP", "TO", "NEXT", "ROW"]:
            return "next", ()
        if upper[:4] != ["AFTER", "MATCH", "SKIP", "TO"] or len(words) not in (5, 6):
            raise self.text.error(words[0].start, f"{' '.join(word.text for word in words)[:60]} is not expected here", _SKIP)
        if len(words) == 6 and upper[4] not in ("FIRST", "LAST"):
            raise self.text.error(words[4].start, f"{words[4].text} is not expected here", _SKIP)
        skip_to, name = upper[4].lower() if len(words) == 6 else "last", words[-1]
        if name.text.upper() == "ROW" and name.name not in self.sets:
            raise self.text.error(name.start, f"SKIP TO {skip_to.upper()} ROW would be where the match began, or ended", _SKIP)
        variables = self._variables(name)
        if not may_skip(self.pattern, skip_to, frozenset(variables)):
            why = f"SKIP TO {skip_to.upper()} {name.text}: that row may be missing, or the first row of the match"
            raise self.text.error(name.start, why, "skip to a variable that every match has after its first row, or TO NEXT ROW")
        return skip_to, tuple(variables)

    def _within(self) -> int | None:
        tree = self.tree.args.get("within")
        if tree is None:
            return None
        span = interval_of(self.text, tree)
        if span is None or span <= 0:
            raise self.text.error(tree, "WITHIN takes an interval above 0", "write WITHIN INTERVAL '10 minutes'")
        return span

    def _variables(self, word: Word) -> tuple[int, ...]:
        found = self.sets.get(word.name)
        if found is None:
            hint = did_you_mean(word.name, list(self.sets))
            raise self.text.error(word.start, f"there is no variable {word.text} in PATTERN", hint)
        return found

    def _subset(self, name: Word, members: list[Word]) -> None:
        if name.name in self.sets:
            raise self.text.error(name.start, f"SUBSET {name.text}: there is a variable of this name", "give it another name")
        if not members:
            raise self.text.error(name.start, f"SUBSET {name.text} has no variables", "write SUBSET u = (a, b)")
        self.sets[name.name] = tuple(sorted({place for member in members for place in self._variables(member)}))

    # ------------------------------------------------------------------------------------------------ conditions and measures

    def _conditions(self, values: "_Operands") -> list[Expression | None]:
        conditions: list[Expression | None] = [None] * len(self.variables)
        seen: set[str] = set()
        for item in self.tree.args.get("define") or ():
            name = identifier(item.args["alias"])
            if name not in self.variables:
                hint = did_you_mean(name, list(self.variables))
                raise self.text.error(item, f"DEFINE {name}: there is no variable {name} in PATTERN", hint)
            if name in seen:
                raise self.text.error(item, f"DEFINE has {name} twice", "join the conditions with AND")
            seen.add(name)
            values.defines = self.variables.index(name)
            condition = values.condition(item.this, f"DEFINE {name}")
            conditions[values.defines] = None if fold(condition) == TRUE else condition
        values.defines = None
        return conditions

    def _refuse_endless(self, conditions: list[Expression | None], within: int | None) -> None:
        """Refuses an unlimited repetition of a variable that every row meets: it would keep every row for ever."""
        always = [self.variables[place] for place in sorted(endless(self.pattern)) if conditions[place] is None]
        if within is None and always:
            word = next(Word(*word) for word in self.tree.meta["pattern"] if Word(*word).name == always[0])
            what = f"{word.text} holds for every row and is repeated without an end: all rows would be kept"
            raise self.text.error(word.start, what, f"{_WITHIN}, or DEFINE {word.text} AS a condition")

    def _measures(self, values: "_Operands") -> list[tuple[str, Expression, ColumnType]]:
        measures: list[tuple[str, Expression, ColumnType]] = []
        for item in self.tree.args.get("measures") or ():
            name = column_name(self.text, item.args["alias"])
            if any(known == name for known, _, _ in measures):
                raise self.text.error(item, f"two measures are named {name}", "give one of them another name")
            measures.append((name, *values.value(item.this)))
        return measures


@dataclass(frozen=True)
class _Row:
    """The row of a match that an operand reads."""

    value: exp.Expr | None
    """None: CLASSIFIER."""
    variables: tuple[int, ...]
    first: bool = False
    skip: int = 0
    shift: int = 0


class _Operands(Scalars):
    """Binds conditions and measures, and collects their operands."""

    def __init__(self, clause: _Clause, all_rows: bool) -> None:
        super().__init__(clause.text, clause.scope)
        self._clause = clause
        self._all_rows = all_rows
        self.defines: int | None = None
        """The variable whose condition is bound; None for measures."""
        self.operands: list[Operand] = []
        self.types: dict[str, ColumnType] = {}
        """Types of the operands, by name."""

    def columns(self) -> tuple[str, ...]:
        """Returns the columns of the input that operands read."""
        values: list[Expression | None] = []
        for one in self.operands:
            if isinstance(one, Tally):
                values += [one.aggregate.operand, one.aggregate.by]
            elif isinstance(one, Navigation):
                values.append(one.value)
        return tuple(name for name in columns_of(value for value in values if value is not None) if name != ROW_LABEL)

    def bind(self, tree: exp.Expr) -> Bound:
        """Binds a value of the match, or an expression of such values."""
        final = self._final(tree)
        called = _called(tree)
        if called == "match_number":
            self._no_arguments(tree)
            return self._operand(MatchNumber(""), ColumnType.INT)
        if called == "match_rowtime":
            return self._row_time(tree)
        if called in _NAVIGATIONS:
            return self._navigation(tree, self._row(tree), final)
        if isinstance(tree, exp.Column) and not isinstance(tree.this, exp.Star):
            return self._navigation(tree, _Row(tree, self._set_of(tree)), final)
        if aggregate_function(tree) is not None or isinstance(tree, exp.Filter):
            return self._tally(tree, final)
        return super().bind(tree)

    def _final(self, tree: exp.Expr) -> bool:
        """Tells whether a value covers the whole match (FINAL). With one row for each match it always does, as that is the last row."""
        said = [part for part in (tree, *_inner(tree)) if "semantics" in part.meta]
        for part in said:
            word = str(part.meta["semantics"])
            if _called(part) not in _WITH_SEMANTICS and aggregate_function(_without_filter(part)) is None:
                what = f"{word.upper()} of {self.text.written(part)[:60]}: it goes with {_SEMANTICS}"
                raise self.refuse(part, what, f"write {word.upper()} LAST(a.x)")
            if self.defines is not None and word == "final":
                raise self.refuse(part, f"{self.typed(part)} with FINAL is not known in DEFINE, while the match goes on", "leave FINAL out")
        return self.defines is None and (any(part.meta["semantics"] == "final" for part in said) or not self._all_rows)

    def _no_arguments(self, tree: exp.Expr) -> None:
        if tree.expressions:
            raise self.refuse(tree, f"{self.typed(tree)} takes no argument", f"write {self.typed(tree)}()")

    def _row_time(self, tree: exp.Expr) -> Bound:
        time = self._clause._order()[0]
        given = tree.expressions
        if given and (len(given) > 1 or not _is_name(given[0]) or self._unqualified(given[0])[0] != Column(time)):
            raise self.refuse(tree, f"{self.typed(tree)} takes nothing, or the event time", f"write {self.typed(tree)}()")
        return self._operand(Navigation("", Column(time), final=True), ColumnType.TIME)

    def _operand(self, operand: Operand, type_: ColumnType) -> Bound:
        """Returns the column of an operand; equal operands share one."""
        for known in self.operands:
            if msgspec.structs.replace(known, name="") == operand:
                return Column(known.name), self.types[known.name]
        name = f"o{len(self.operands)}"
        self.operands.append(msgspec.structs.replace(operand, name=name))
        self.types[name] = type_
        return Column(name), type_

    # --------------------------------------------------------------------------------------------------------- single rows

    def _row(self, tree: exp.Expr) -> _Row:
        """Reads FIRST, LAST, PREV, NEXT and CLASSIFIER, also nested."""
        name = self.typed(tree).lower()
        arguments = self._arguments(tree)
        if name == "classifier":
            if len(arguments) > 1 or (arguments and not _is_name(arguments[0])):
                raise self.refuse(tree, f"{self.typed(tree)} takes a variable or nothing", "write CLASSIFIER() or CLASSIFIER(u)")
            return _Row(None, self._named(arguments[0]) if arguments else ())
        if not 1 <= len(arguments) <= 2:
            raise self.refuse(tree, f"{self.typed(tree)} takes a value and a number of rows", f"write {self.typed(tree)}(a.x, 1)")
        inner, called = arguments[0], _called(arguments[0])
        count = self._count(tree, arguments[1] if len(arguments) > 1 else None, 1 if name in ("prev", "next") else 0)
        if name in ("prev", "next"):
            row = self._row(inner) if called in _WITH_SEMANTICS else self._plain(tree, inner)
            return replace(row, shift=-count if name == "prev" else count)
        row = self._row(inner) if called == "classifier" else self._plain(tree, inner)
        return replace(row, first=name == "first", skip=count)

    def _arguments(self, tree: exp.Expr) -> list[exp.Expr]:
        if isinstance(tree, exp.Anonymous):
            return list(tree.expressions)
        extra = [value for key, value in tree.args.items() if key not in ("this", "expression") and value not in (None, False, [])]
        if extra:
            raise self.refuse(tree, f"{self.typed(tree)} takes a value and a number of rows", f"write {self.typed(tree)}(a.x, 1)")
        return [value for value in (tree.this, tree.args.get("expression")) if value is not None]

    def _count(self, tree: exp.Expr, count: exp.Expr | None, otherwise: int) -> int:
        if count is None:
            return otherwise
        number = str(count.this) if isinstance(count, exp.Literal) and not count.args.get("is_string") else ""
        if not number.isdecimal() or len(number) > 6 or int(number) > PRECEDING_MAX:
            raise self.refuse(
                count, f"{self.typed(tree)} takes a number of rows, at most {PRECEDING_MAX}", f"write {self.typed(tree)}(x, 2)"
            )
        return int(number)

    def _plain(self, tree: exp.Expr, inner: exp.Expr, outer: tuple[exp.Expr, ...] = ()) -> _Row:
        """Returns the row of a value without navigation in it: all its columns are of one variable, or of none.

        Parameters
        ----------
        outer : for the operand of an aggregate, the nodes of the aggregate call itself
        """
        typed, labels = self.typed(outer[1] if outer else tree), list[exp.Expr]()
        for part in inner.walk():
            if any(part is one for one in outer):
                continue
            if outer and _called(part) == "classifier":
                labels.append(part)
            elif _called(part) in _NAVIGATIONS or aggregate_function(part) is not None:
                hint = "PREV and NEXT take FIRST(...) or LAST(...), those and aggregates take values of single rows"
                raise self.refuse(part, f"{self.typed(part)} is not expected in {typed}", hint)
        named = {id(argument) for label in labels for argument in label.expressions}
        sets = {self._set_of(column) for column in inner.find_all(exp.Column) if id(column) not in named}
        sets.update(self._row(label).variables for label in labels)
        if len(sets) > 1:
            what = f"{self.text.written(tree)} reads rows of two variables"
            example = f"{typed.upper()}(a.x)" if outer else "LAST(a.x) - LAST(b.x)"
            raise self.refuse(tree, what, f"take each of them by itself: {example}")
        return _Row(inner, next(iter(sets), ()))

    def _set_of(self, tree: exp.Column) -> tuple[int, ...]:
        """Returns the variables that a column is qualified with; none: all rows."""
        table = tree.args.get("table")
        return () if table is None else self._named(table)

    def _named(self, tree: exp.Expr) -> tuple[int, ...]:
        name = identifier(tree.this if isinstance(tree, exp.Column) else tree)
        found = self._clause.sets.get(name)
        if found is None:
            hint = did_you_mean(name, list(self._clause.sets))
            raise self.refuse(tree, f"there is no variable {name} in PATTERN", hint or "write a column alone, or after a variable: a.x")
        return found

    def _navigation(self, tree: exp.Expr, row: _Row, final: bool) -> Bound:
        if row.value is None:
            value, type_ = None, ColumnType.TEXT
        else:
            value, bound_type = self._unqualified(row.value)
            if bound_type is None or not columns_of([value]):
                return value, bound_type  # a constant is the same on every row
            type_ = bound_type
        return self._operand(Navigation("", value, row.variables, row.first, row.skip, row.shift, final), type_)

    def _unqualified(self, tree: exp.Expr) -> Bound:
        """Binds a value of one row, whose variable is known."""
        copy, scalars = self._bare(tree), Scalars(self.text, self.scope)
        expression, type_ = scalars.bind(copy)
        return scalars.checked(copy, expression), type_

    def _bare(self, tree: exp.Expr) -> exp.Expr:
        """Returns a copy whose columns have no variables."""
        copy = tree.copy()
        for column in copy.find_all(exp.Column):
            column.set("table", None)
        return copy

    # ---------------------------------------------------------------------------------------------------------- aggregates

    def _tally(self, tree: exp.Expr, final: bool) -> Bound:
        if isinstance(tree, exp.Count) and isinstance(tree.this, exp.Column) and isinstance(tree.this.this, exp.Star):
            return self._operand(Tally("", Aggregate("", "count", None), self._named(tree.this.args["table"]), final), ColumnType.INT)
        called = _without_filter(tree)
        name = aggregate_function(called)
        if name is None or _called(called) in _NAVIGATIONS:
            what = f"FILTER belongs to an aggregate, {self.text.written(called)[:60]} is none"
            raise self.refuse(tree, what, "write COUNT(*) FILTER (WHERE a.x > 1)")
        row = self._plain(tree, tree, outer=(tree, called, called.this if isinstance(called, exp.WithinGroup) else called))
        bare, scalars = self._bare(called), _OfRows(self.text, self.scope)
        condition = None if called is tree else scalars.condition(self._bare(tree.expression.this), "FILTER")
        made = aggregated(scalars, bare, read_aggregate(self.text, bare, name), condition)
        if made.form.operand is not None:
            scalars.checked(tree, made.form.operand)
        return made.answered(self, tree, self._operand(Tally("", made.form, row.variables, final), made.type))


class _OfRows(Scalars):
    """Binds operands of aggregates."""

    def bind(self, tree: exp.Expr) -> Bound:
        """Binds CLASSIFIER, a column, or an expression of these."""
        return (Column(ROW_LABEL), ColumnType.TEXT) if _called(tree) == "classifier" else super().bind(tree)


def _called(tree: exp.Expr) -> str:
    """Returns the name of a function as it was typed, in small letters; "" for anything else."""
    return str(tree.meta.get("typed", "")).lower() if isinstance(tree, exp.Func) else ""


def _without_filter(tree: exp.Expr) -> exp.Expr:
    called: exp.Expr = tree.this if isinstance(tree, exp.Filter) else tree
    return called


def _inner(tree: exp.Expr) -> list[exp.Expr]:
    """Returns the argument of PREV and NEXT that may be FIRST, LAST or CLASSIFIER."""
    if _called(tree) not in ("prev", "next"):
        return []
    return list(tree.expressions[:1]) if isinstance(tree, exp.Anonymous) else [tree.this]


def _is_name(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Column) and isinstance(tree.this, exp.Identifier) and tree.args.get("table") is None
