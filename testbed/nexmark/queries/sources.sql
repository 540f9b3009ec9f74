-- The three streams. {options} stands for the options with the number and rate of events.
CREATE SOURCE person (
    id BIGINT, name TEXT, email TEXT, credit_card TEXT, city TEXT, state TEXT, ts TIMESTAMP, extra TEXT,
    WATERMARK FOR ts AS ts
) WITH (connector = 'nexmark', kind = 'person', {options});

CREATE SOURCE auction (
    id BIGINT, item_name TEXT, description TEXT, initial_bid BIGINT, reserve BIGINT, ts TIMESTAMP, expires TIMESTAMP,
    seller BIGINT, category BIGINT, extra TEXT,
    WATERMARK FOR ts AS ts
) WITH (connector = 'nexmark', kind = 'auction', {options});

CREATE SOURCE bid (
    auction BIGINT, bidder BIGINT, price BIGINT, channel TEXT, url TEXT, ts TIMESTAMP, extra TEXT,
    WATERMARK FOR ts AS ts
) WITH (connector = 'nexmark', kind = 'bid', {options});
