-- The figures of q15 for each channel, with the minute of its last bid.
SELECT
    channel,
    DATE_FORMAT(window_start, 'yyyy-MM-dd') AS day,
    MAX(DATE_FORMAT(ts, 'HH:mm')) AS minute,
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
GROUP BY window_start, channel
