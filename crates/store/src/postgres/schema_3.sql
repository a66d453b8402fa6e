-- One number, until the server crashes: PostgreSQL empties what it does not log when it recovers, and when another
-- server takes over. Numbers of transactions that a crash has undone are given again; who asks for one's fate must
-- know whether it is still the same life.
CREATE UNLOGGED TABLE life (
    one    BOOLEAN PRIMARY KEY CHECK (one),
    number BIGINT  NOT NULL
);
