-- Pass through: measures what it costs the engine to carry bids.
SELECT auction, bidder, price, ts, extra FROM bid
