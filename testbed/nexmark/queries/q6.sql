-- Mean closing price of each seller's last auctions: for each auction with a winning bid (q9), over it and the seller's ten auctions before
-- it. Auctions that are decided in the same 10 s are ordered by id, which is the order in which they were opened.
SELECT seller, id, AVG(price) OVER (PARTITION BY seller ORDER BY window_end ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS average
FROM (
    SELECT window_end, seller, id, price
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
) AS winning
