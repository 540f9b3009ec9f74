-- Bids with their auctions, in category 10. A join of streams needs a bound: bids go to recent auctions, so 10 s lose no pair at
-- 1,000 events a second of event time or more.
SELECT
    b.auction, b.bidder, b.price, b.channel, b.url, b.ts, b.extra,
    a.item_name, a.description, a.initial_bid, a.reserve, a.ts AS opened, a.expires, a.seller, a.category, a.extra AS auction_extra
FROM bid AS b
JOIN auction AS a ON b.auction = a.id AND b.ts BETWEEN a.ts - INTERVAL '10 seconds' AND a.ts + INTERVAL '10 seconds'
WHERE a.category = 10
