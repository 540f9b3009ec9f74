"""How sources give their rows, as far as their options say."""

from sbon.query.plan import SourceParams


def is_read_whole(params: SourceParams) -> bool:
    """Tells whether a source is a table, or has all its rows from the start, gives them as fast as they are taken, and ends: each query
    then wants all rows.

    A source that goes by the clock is different, even a file that is replayed so: a later query joins it where it is.
    """
    options = dict(params.options)
    if params.is_table:
        return True
    if params.connector == "file":
        return options.get("replay", "fast") == "fast"
    return params.connector == "datagen" and "rows" in options and options.get("rows_per_second") == "max"
