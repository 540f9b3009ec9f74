"""Finds the views that become unusable when a source or another view is dropped."""

from collections.abc import Mapping

from sbon.errors import QueryError
from sbon.extensions import NOTHING, Extensions
from sbon.query.binder import bind
from sbon.query.catalog import Catalog
from sbon.query.sql import CreateView, parse


def dependents(name: str, catalog: Catalog, labels: Mapping[str, Mapping[str, str]], extensions: Extensions = NOTHING) -> list[str]:
    """Returns, sorted, the views that need the name, directly or through other views: they cannot be bound without it.

    Parameters
    ----------
    labels : labels of the living nodes, by node
    """
    without = Catalog()
    without.merge(entry for entry in catalog.entries() if entry.name != name)
    return [
        view
        for view in _mention(name, catalog)
        if _usable(view, catalog, labels, extensions) and not _usable(view, without, labels, extensions)
    ]


def _mention(name: str, catalog: Catalog) -> list[str]:
    """Returns the views whose text mentions the name or a view found before; no other view can depend on the name."""
    texts = {entry.name: entry.sql.lower() for entry in catalog.living.values() if entry.kind == "view" and entry.name != name}
    found: set[str] = set()
    waiting = [name]
    while waiting:
        part = waiting.pop().lower()
        more = {view for view, text in texts.items() if part in text} - found
        found |= more
        waiting += more
    return sorted(found)


def _usable(view: str, catalog: Catalog, labels: Mapping[str, Mapping[str, str]], extensions: Extensions) -> bool:
    entry = catalog.get(view)
    if entry is None:
        return False
    try:
        (statement,) = parse(entry.sql)
        if isinstance(statement, CreateView):
            bind(statement, catalog, labels, extensions)
    except (QueryError, ValueError):
        return False
    return True
