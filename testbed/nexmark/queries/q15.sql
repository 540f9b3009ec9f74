-- Bids of each day: how many, and how many different bidders and auctions, in three classes of price. Given once, at the day's end.
SELECT
    DATE_FORMAT(window_start, 'yyyy-MM-dd') AS day,
    COUNT(*) AS total_bids,
    COUNT(*) FILTER (WHERE price < 10000) AS low_bids,
    COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle_bids,
    COUNT(*) FILTER (WHERE price >= 1000000) AS high_bids,
    COUNT(DISTINCT bidder) AS total_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price < 10000) AS low_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS high_bidders,
    COUNT(DISTINCT auction) AS total_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price < 10000) AS low_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000) AS high_auctions
FROM TUMBLE(bid, ts, INTERVAL '1 day')
GROUP BY window_start
