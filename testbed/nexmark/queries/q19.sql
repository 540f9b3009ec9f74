-- The ten highest bids on each auction in each 10 s; of equal bids, the earlier.
SELECT auction, bidder, price, channel, url, ts, extra, place
FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, auction ORDER BY price DESC, ts) AS place
    FROM TUMBLE(bid, ts, INTERVAL '10 seconds')
) AS ranked
WHERE place <= 10
