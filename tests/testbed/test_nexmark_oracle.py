"""Compares the batch answers to Nexmark queries with those of DuckDB, which shares no code for SQL, texts or the calendar."""

from pathlib import Path

import duckdb
import polars as pl
import pytest

from sbon_testbed.answers import equal
from sbon_testbed.nexmark.catalogue import OFFERED
from sbon_testbed.nexmark.events import KINDS, Events
from sbon_testbed.nexmark.reference import answer
from sbon_testbed.nexmark.stream import Stream
from tests.examples import seeds

EVENTS = 75_000
FAST, SLOW = Events(seed=5, events_per_s=4_000), Events(seed=5, events_per_s=1)
"""Events of two windows of ten seconds, and events of nearly twenty-one hours."""

WINDOW = "time_bucket(INTERVAL '10 seconds', ts) + INTERVAL '10 seconds'"
CLASSES = {"low": "price < 10000", "middle": "price >= 10000 AND price < 1000000", "high": "price >= 1000000"}


def counts(*columns: str) -> str:
    """Returns SQL that counts bids and distinct values of columns, in all and by class of price."""
    found = ["COUNT(*) AS total_bids", *(f"COUNT(*) FILTER (WHERE {chosen}) AS {name}_bids" for name, chosen in CLASSES.items())]
    for column in columns:
        found.append(f"COUNT(DISTINCT {column}) AS total_{column}s")
        found += [f"COUNT(DISTINCT {column}) FILTER (WHERE {chosen}) AS {name}_{column}s" for name, chosen in CLASSES.items()]
    return ", ".join(found)


WINNING = """
SELECT id, item_name, seller, category, auction.ts, expires, bidder, price, bid.ts AS bid_ts
FROM auction JOIN bid ON id = auction WHERE bid.ts BETWEEN auction.ts AND expires
QUALIFY ROW_NUMBER() OVER (PARTITION BY id ORDER BY price DESC, bid.ts) = 1
"""
CHANNEL = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"
PUBLIC = {
    "q0": "SELECT auction, bidder, price, ts, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908::DOUBLE * price AS price, ts, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": "SELECT name, city, state, a.id FROM auction a JOIN person p ON seller = p.id WHERE category = 10 AND state IN ('OR','ID','CA')",
    "q4": f"""SELECT window_end, category, AVG(final) AS average FROM (
        SELECT {WINDOW.replace("ts", "auction.ts", 1)} AS window_end, id, category, MAX(price) AS final
        FROM auction JOIN bid ON id = auction WHERE bid.ts BETWEEN auction.ts AND expires GROUP BY ALL) GROUP BY ALL""",
    "q5": """SELECT time_bucket(INTERVAL '2 seconds', ts) - back * INTERVAL '2 seconds' + INTERVAL '10 seconds' AS window_end, auction,
        COUNT(*) AS num FROM bid, range(5) AS r(back) GROUP BY 1, 2 QUALIFY num = MAX(num) OVER (PARTITION BY window_end)""",
    "q6": f"""SELECT seller, id, AVG(price) OVER (PARTITION BY seller ORDER BY id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS average
        FROM ({WINNING})""",
    "q7": f"SELECT auction, price, bidder, ts, extra FROM bid QUALIFY price = MAX(price) OVER (PARTITION BY {WINDOW})",
    "q8": f"""SELECT DISTINCT id, name, window_end FROM (SELECT id, name, {WINDOW} AS window_end FROM person)
        JOIN (SELECT seller, {WINDOW} AS sold FROM auction) ON id = seller AND window_end = sold""",
    "q9": WINNING,
    "q10": "SELECT auction, bidder, price, ts, extra, strftime(ts, '%Y-%m-%d') AS dt, strftime(ts, '%H:%M') AS hm FROM bid",
    "q11": """SELECT bidder, COUNT(*) AS bids, MIN(ts) AS window_start, MAX(ts) + INTERVAL '10 seconds' AS window_end FROM (
        SELECT bidder, ts, SUM(gap) OVER (PARTITION BY bidder ORDER BY ts) AS session FROM (
            SELECT bidder, ts, (ts - LAG(ts) OVER (PARTITION BY bidder ORDER BY ts) >= INTERVAL '10 seconds')::INT AS gap FROM bid
        )) GROUP BY bidder, coalesce(session, 0)""",
    "q14": """SELECT auction, bidder, 0.908::DOUBLE * price AS price, CASE WHEN hour(ts) BETWEEN 8 AND 18 THEN 'day'
        WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'night' ELSE 'other' END AS part_of_day, ts, extra,
        length(extra) - length(replace(extra, 'c', '')) AS c_count
        FROM bid WHERE 0.908::DOUBLE * price > 1000000 AND 0.908::DOUBLE * price < 50000000""",
    "q15": f"SELECT strftime(ts, '%Y-%m-%d') AS day, {counts('bidder', 'auction')} FROM bid GROUP BY 1",
    "q16": f"""SELECT channel, strftime(ts, '%Y-%m-%d') AS day, MAX(strftime(ts, '%H:%M')) AS minute, {counts("bidder", "auction")}
        FROM bid GROUP BY 1, 2""",
    "q17": f"""SELECT auction, strftime(ts, '%Y-%m-%d') AS day, {counts()}, MIN(price) AS min_price, MAX(price) AS max_price,
        AVG(price) AS avg_price, SUM(price)::BIGINT AS sum_price FROM bid GROUP BY 1, 2""",
    "q18": f"""SELECT auction, bidder, price, channel, url, ts, extra FROM bid
        QUALIFY ROW_NUMBER() OVER (PARTITION BY {WINDOW}, bidder, auction ORDER BY ts DESC) = 1""",
    "q19": f"""SELECT auction, bidder, price, channel, url, ts, extra,
        ROW_NUMBER() OVER (PARTITION BY {WINDOW}, auction ORDER BY price DESC, ts) AS place FROM bid QUALIFY place <= 10""",
    "q20": """SELECT auction, bidder, price, channel, url, b.ts, b.extra, item_name, description, initial_bid, reserve, a.ts AS opened,
        expires, seller, category, a.extra AS auction_extra FROM bid b JOIN auction a ON auction = id WHERE category = 10""",
    "q21": f"""SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'search' THEN '0' WHEN 'social' THEN '1'
        WHEN 'portal' THEN '2' WHEN 'store' THEN '3' ELSE {CHANNEL} END AS channel_id FROM bid
        WHERE {CHANNEL} IS NOT NULL OR lower(channel) IN ('search', 'social', 'portal', 'store')""",
    "q22": """SELECT auction, bidder, price, channel, str_split(url, '/')[4] AS dir1, str_split(url, '/')[5] AS dir2,
        str_split(url, '/')[6] AS dir3 FROM bid""",
}


@pytest.fixture(scope="module", params=seeds([SLOW], [FAST]), ids=["slow", "fast"])
def tables(request: pytest.FixtureRequest) -> dict[str, pl.DataFrame]:
    return {kind: Stream(kind, request.param, 50_000).all_rows(EVENTS) for kind in KINDS}


@pytest.fixture(scope="module")
def folder(tables: dict[str, pl.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the rows to files that DuckDB reads; returns their folder."""
    made = tmp_path_factory.mktemp("nexmark")
    for kind, table in tables.items():
        table.write_parquet(made / f"{kind}.parquet")
    return made


@pytest.mark.parametrize("query", OFFERED)
def test_duckdb_gives_the_same_answers(query: str, tables: dict[str, pl.DataFrame], folder: Path) -> None:
    found = folder / f"{query}.parquet"
    with duckdb.connect() as connection:
        for kind in KINDS:
            connection.execute(f"CREATE VIEW {kind} AS SELECT * FROM '{folder / kind}.parquet'")
        connection.execute(f"COPY ({PUBLIC[query]}) TO '{found}'")
    oracle = pl.read_parquet(found)
    expected = answer(query, {kind: table.lazy() for kind, table in tables.items()})
    assert expected.height > 0
    assert equal(oracle.cast(dict(expected.schema)), expected)  # type: ignore[arg-type]
