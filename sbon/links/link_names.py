"""Names of links: made from their ends, with a number if the link has been renewed (`renewed`)."""

from sbon.types import LinkId, OperatorId


def link_id(source: OperatorId, target: OperatorId, port: int) -> LinkId:
    """Returns the name of a link. It consists of the link's ends, so both ends know it."""
    return f"{source}>{target}:{port}"


def target_of(link: LinkId) -> OperatorId:
    """Returns the operator that a link leads to, from the link's name.

    Examples
    --------
    >>> target_of("ams.t1.0>ams.t1.1:0"), target_of("ams.t1.0>ams.t1.1:0#2")
    ('ams.t1.1', 'ams.t1.1')
    """
    return link.rpartition(":")[0].rpartition(">")[2]


def renewed(link: LinkId, number: int) -> LinkId:
    """Returns the id of the new link that replaces this one after an end was lost.

    Parameters
    ----------
    number : greater than the number of every id that the link has had or was about to get

    Examples
    --------
    >>> renewed("ams.t1.0>ams.t1.1:0#2", 1), renewed("ams.t1.0>ams.t1.1:0+1", 5)
    ('ams.t1.0>ams.t1.1:0#2+1', 'ams.t1.0>ams.t1.1:0+5')
    """
    return f"{first_name(link)}+{number}"


def first_name(link: LinkId) -> LinkId:
    """Returns the id that a link had before it was first renewed.

    Examples
    --------
    >>> first_name("ams.t1.0>ams.t1.1:0#2+3"), first_name("a+b.t1.0>a+b.t1.1:0")
    ('ams.t1.0>ams.t1.1:0#2', 'a+b.t1.0>a+b.t1.1:0')
    """
    ends, colon, port = link.rpartition(":")
    return f"{ends}{colon}{port.partition('+')[0]}"


def renewals(link: LinkId) -> int:
    """Returns the number in the id of a renewed link, or 0.

    Examples
    --------
    >>> renewals("ams.t1.0>ams.t1.1:0#2+3"), renewals("a+b.t1.0>a+b.t1.1:0")
    (3, 0)
    """
    number = link.rpartition(":")[2].partition("+")[2]
    return int(number) if number.isdecimal() and len(number) < RENEWALS_DIGITS_MAX else 0


RENEWALS_DIGITS_MAX = 16
"""Numbers with this many digits or more count as 0, because ids from other agents may contain anything."""
