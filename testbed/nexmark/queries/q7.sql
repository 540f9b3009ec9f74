-- Highest bid: the bids with the highest price in each 10 s.
SELECT b.auction, b.price, b.bidder, b.ts, b.extra
FROM bid AS b
JOIN (
    SELECT window_end, MAX(price) AS highest FROM TUMBLE(bid, ts, INTERVAL '10 seconds') GROUP BY window_end
) AS m ON b.price = m.highest AND b.ts >= m.window_end - INTERVAL '10 seconds' AND b.ts < m.window_end
