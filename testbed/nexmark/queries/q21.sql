-- Channels by number: large channels have their numbers here, others in the address of the bid.
SELECT auction, bidder, price, channel,
    CASE
        WHEN LOWER(channel) = 'search' THEN '0'
        WHEN LOWER(channel) = 'social' THEN '1'
        WHEN LOWER(channel) = 'portal' THEN '2'
        WHEN LOWER(channel) = 'store' THEN '3'
        ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)
    END AS channel_id
FROM bid
WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL OR LOWER(channel) IN ('search', 'social', 'portal', 'store')
