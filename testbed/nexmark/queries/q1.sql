-- Currency conversion: bids in euros instead of dollars.
SELECT auction, bidder, 0.908 * price AS price, ts, extra FROM bid
