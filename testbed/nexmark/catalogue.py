"""The twenty-three queries of the public benchmark: what each computes, and why some have no equivalent here.

Queries whose answers the public benchmark corrects while rows arrive (q4, q9, q15 to q19) give each answer once, for its window of 10 s or
a day: streams here are append-only.
"""

from typing import NamedTuple


class Query(NamedTuple):
    """One of the queries."""

    what: str
    missing: str = ""
    """Reason why it has no equivalent here; empty if it is in `queries/`."""


QUERIES = {
    "q0": Query("passes bids through"),
    "q1": Query("converts a currency"),
    "q2": Query("bids on every 123rd auction"),
    "q3": Query("who sells in category 10 in three states (join)"),
    "q4": Query("average closing price by category (join, two aggregates)"),
    "q5": Query("hot items: most bids in 10 s, every 2 s"),
    "q6": Query("average closing price of each seller's last auctions (join, first row, rows before a row)"),
    "q7": Query("the highest bids of each 10 s"),
    "q8": Query("who registers and sells in the same 10 s (join of windows)"),
    "q9": Query("the winning bid of each auction (join, first row)"),
    "q10": Query("bids with their day and minute, for folders of files"),
    "q11": Query("bids in each session of a user"),
    "q12": Query(
        "bids of each user in 10 s of the clock",
        "windows here go by the times in the rows, not by the clock of the machine: answers would depend on when rows happen to come",
    ),
    "q13": Query(
        "bids with what a table says of their auction",
        "a lookup in a table needs a file beside the streams, which the bench does not write",
    ),
    "q14": Query("bids of a middle price, with the time of day and a count of letters"),
    "q15": Query("bids, bidders and auctions of each day, by class of price"),
    "q16": Query("the same for each channel"),
    "q17": Query("bids and prices of each auction and day"),
    "q18": Query("the last bid of each bidder on each auction"),
    "q19": Query("the ten highest bids on each auction"),
    "q20": Query("bids with their auction, in category 10 (join)"),
    "q21": Query("channels by number, from their names and addresses"),
    "q22": Query("the folders of addresses"),
}
"""Queries by name, in order."""
OFFERED = tuple(name for name, query in QUERIES.items() if not query.missing)
"""Names of the queries that have an equivalent."""
