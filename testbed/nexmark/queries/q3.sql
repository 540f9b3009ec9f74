-- Local items: who sells in category 10 in three states. A join of streams needs a bound: a seller is an active person, so 10 s between
-- the registration and the auction lose no pair at 10,000 events a second of event time or more.
SELECT p.name, p.city, p.state, a.id
FROM auction AS a
JOIN person AS p ON a.seller = p.id AND a.ts BETWEEN p.ts - INTERVAL '10 seconds' AND p.ts + INTERVAL '10 seconds'
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
