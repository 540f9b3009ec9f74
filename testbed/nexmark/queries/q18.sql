-- Last bids: the latest bid of each bidder on each auction, in each 10 s.
SELECT auction, bidder, price, channel, url, ts, extra
FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, bidder, auction ORDER BY ts DESC) AS place
    FROM TUMBLE(bid, ts, INTERVAL '10 seconds')
) AS ranked
WHERE place = 1
