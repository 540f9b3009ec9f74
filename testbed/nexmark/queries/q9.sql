-- Winning bids: for each auction the highest bid that came while it was open; of equal bids, the earliest. Bounds as in q4; an auction is
-- decided when the 10 s end in which it was opened.
SELECT id, item_name, seller, category, ts, expires, bidder, price, bid_ts
FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, id ORDER BY price DESC, bid_ts) AS place
    FROM TUMBLE(
        (
            SELECT a.id, a.item_name, a.seller, a.category, a.ts, a.expires, b.bidder, b.price, b.ts AS bid_ts
            FROM auction AS a
            JOIN bid AS b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '10 seconds' AND b.ts <= a.expires
        ),
        ts,
        INTERVAL '10 seconds'
    )
) AS ranked
WHERE place = 1
