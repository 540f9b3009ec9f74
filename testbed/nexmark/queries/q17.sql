-- Each auction's bids of each day: how many in three classes of price, and the prices. Given once, at the day's end.
SELECT
    auction,
    DATE_FORMAT(window_start, 'yyyy-MM-dd') AS day,
    COUNT(*) AS total_bids,
    COUNT(*) FILTER (WHERE price < 10000) AS low_bids,
    COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle_bids,
    COUNT(*) FILTER (WHERE price >= 1000000) AS high_bids,
    MIN(price) AS min_price,
    MAX(price) AS max_price,
    AVG(price) AS avg_price,
    SUM(price) AS sum_price
FROM TUMBLE(bid, ts, INTERVAL '1 day')
GROUP BY window_start, auction
