-- Hot items: the auctions with the most bids in the last 10 s, every 2 s.
WITH counted AS (
    SELECT window_end, auction, COUNT(*) AS num
    FROM HOP(bid, ts, INTERVAL '2 seconds', INTERVAL '10 seconds')
    GROUP BY window_end, auction
)
SELECT c.window_end, c.auction, c.num
FROM counted AS c
JOIN (SELECT window_end, MAX(num) AS most FROM counted GROUP BY window_end) AS m ON c.window_end = m.window_end AND c.num = m.most
