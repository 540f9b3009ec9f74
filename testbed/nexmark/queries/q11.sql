-- User sessions: how many bids a user makes without a pause of 10 s.
SELECT bidder, COUNT(*) AS bids, window_start, window_end
FROM SESSION(bid, ts, INTERVAL '10 seconds')
GROUP BY window_start, window_end, bidder
