"""Derives from a source's options how it delivers its rows."""

from sbon.query.params.source import SourceParams


def is_read_whole(params: SourceParams) -> bool:
    """Tells whether each query reads all rows of the source: a table, or a source that has all rows from the start, delivers them as fast
    as they are taken, and ends.

    A source paced by the clock is different, even a file replayed that way: a later query joins it at its present row.
    """
    options = dict(params.options)
    if params.is_table:
        return True
    if params.connector == "file":
        return options.get("replay", "fast") == "fast"
    return params.connector == "datagen" and "rows" in options and options.get("rows_per_second") == "max"
