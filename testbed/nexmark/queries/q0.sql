-- Pass through: what the engine takes for carrying bids.
SELECT auction, bidder, price, ts, extra FROM bid
