-- Calculation: bids of a middle price in euros, with the time of day, and how often the letter c is in their padding.
SELECT auction, bidder, 0.908 * price AS price,
    CASE
        WHEN HOUR(ts) >= 8 AND HOUR(ts) <= 18 THEN 'day'
        WHEN HOUR(ts) <= 6 OR HOUR(ts) >= 20 THEN 'night'
        ELSE 'other'
    END AS part_of_day,
    ts, extra, LENGTH(extra) - LENGTH(REPLACE(extra, 'c', '')) AS c_count
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
