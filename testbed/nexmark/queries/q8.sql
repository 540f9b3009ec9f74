-- New users: who has registered and opened an auction in the same 10 s.
SELECT p.id, p.name, p.window_end
FROM (SELECT window_end, id, name FROM TUMBLE(person, ts, INTERVAL '10 seconds') GROUP BY window_end, id, name) AS p
JOIN (SELECT window_end, seller FROM TUMBLE(auction, ts, INTERVAL '10 seconds') GROUP BY window_end, seller) AS a
    ON p.id = a.seller AND p.window_end = a.window_end
