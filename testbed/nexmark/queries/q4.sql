-- Average closing price by category, of the auctions that were opened in each 10 s. The join needs a bound beside `expires`: no auction
-- is open for longer than 10 s at 1,000 events a second of event time or more.
SELECT window_end, category, AVG(final) AS average
FROM (
    SELECT window_end, id, category, MAX(price) AS final
    FROM TUMBLE(
        (
            SELECT a.id, a.category, a.ts, b.price
            FROM auction AS a
            JOIN bid AS b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '10 seconds' AND b.ts <= a.expires
        ),
        ts,
        INTERVAL '10 seconds'
    )
    GROUP BY window_end, id, category
) AS closed
GROUP BY window_end, category
