"""Names of links: made from their ends, with a number for each time that a link has begun anew."""

from sbon.types import LinkId, OperatorId


def link_id(source: OperatorId, target: OperatorId, port: int) -> LinkId:
    """Returns the name of a link, made from its ends so that both know it."""
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
    """Returns the id of the link that replaces another one, whose ends begin anew.

    Parameters
    ----------
    number : above those of all ids that the link has had, or has been about to get

    Examples
    --------
    >>> renewed("ams.t1.0>ams.t1.1:0#2", 1), renewed("ams.t1.0>ams.t1.1:0+1", 5)
    ('ams.t1.0>ams.t1.1:0#2+1', 'ams.t1.0>ams.t1.1:0+5')
    """
    return f"{first_name(link)}+{number}"


def first_name(link: LinkId) -> LinkId:
    """Returns the id that a link had before it began anew.

    Examples
    --------
    >>> first_name("ams.t1.0>ams.t1.1:0#2+3"), first_name("a+b.t1.0>a+b.t1.1:0")
    ('ams.t1.0>ams.t1.1:0#2', 'a+b.t1.0>a+b.t1.1:0')
    """
    ends, colon, port = link.rpartition(":")
    return f"{ends}{colon}{port.partition('+')[0]}"


def renewals(link: LinkId) -> int:
    """Returns the number in the id of a link that has begun anew, or 0.

    Examples
    --------
    >>> renewals("ams.t1.0>ams.t1.1:0#2+3"), renewals("a+b.t1.0>a+b.t1.1:0")
    (3, 0)
    """
    number = link.rpartition(":")[2].partition("+")[2]
    return int(number) if number.isdecimal() and len(number) < RENEWALS_DIGITS_MAX else 0


RENEWALS_DIGITS_MAX = 16
"""Longest number that is read from a link's id: ids of others may contain anything."""
