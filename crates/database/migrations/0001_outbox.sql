-- The outbox: calls that are written in the transaction of the caller, and passed on to Redis after
-- the commit, in the order of their ids for each key.
CREATE TABLE keyfall_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    op text NOT NULL DEFAULT 'schedule',
    -- The name of the job, app:module:biz:id. A name that is no key is found by the relay: it must
    -- not fail the transaction of the caller.
    key text NOT NULL,
    -- When the job is due: at a time, or so long after the insert; at once without either.
    due timestamptz,
    delay interval,
    -- Any bytes, usually JSON. Without one the payload is null.
    payload bytea,
    -- The other settings of a schedule, as an object: headers, retry, attempts, timeout,
    -- max_lateness, recurring, if.
    terms jsonb,
    inserted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The kind of the job; empty if the name is no key. It is short, so that it fits into an index.
    kind text NOT NULL GENERATED ALWAYS AS (coalesce(substring(key FROM
        '^([A-Za-z0-9_.-]{1,64}:[A-Za-z0-9_.-]{1,64}:[A-Za-z0-9_.-]{1,64}):[^:]+$'), '')) STORED,
    CONSTRAINT keyfall_op_is_known CHECK (op IN ('schedule', 'reschedule', 'cancel')),
    CONSTRAINT keyfall_due_or_delay CHECK (due IS NULL OR delay IS NULL),
    CONSTRAINT keyfall_due_is_in_range CHECK
        (due BETWEEN timestamptz '1900-01-01 00:00+00' AND timestamptz '9999-12-31 00:00+00'),
    CONSTRAINT keyfall_inserted_at_is_in_range CHECK
        (inserted_at BETWEEN timestamptz '2000-01-01 00:00+00' AND timestamptz '9999-12-31 00:00+00'),
    CONSTRAINT keyfall_delay_is_below_100_years CHECK
        (delay BETWEEN interval '-100 years' AND interval '100 years'),
    CONSTRAINT keyfall_payload_is_below_16_mib CHECK (octet_length(payload) < 16 << 20),
    CONSTRAINT keyfall_terms_are_below_64_kib CHECK (pg_column_size(terms) < 64 << 10),
    CONSTRAINT keyfall_only_a_schedule_has_a_payload_and_terms CHECK
        (op = 'schedule' OR payload IS NULL AND terms IS NULL),
    CONSTRAINT keyfall_a_cancel_has_no_time CHECK
        (op <> 'cancel' OR due IS NULL AND delay IS NULL)
);
CREATE INDEX keyfall_outbox_by_kind ON keyfall_outbox (kind, id);

-- For each kind the batch that a relay is passing on, and its number in a lane of that relay. Whoever
-- sends the batch again under this number repeats nothing.
CREATE TABLE keyfall_outbox_lanes (
    kind text PRIMARY KEY,
    lane text NOT NULL,
    number bigint NOT NULL,
    batch bigint[] NOT NULL DEFAULT '{}',
    -- The relay that works on the kind, and until when others leave it alone.
    relay text,
    taken_until timestamptz
);

-- The calls that cannot be passed on, with the reason. Mended, they are inserted into the outbox again.
CREATE TABLE keyfall_outbox_refused (
    id bigint PRIMARY KEY,
    op text NOT NULL,
    key text NOT NULL,
    due timestamptz,
    delay interval,
    payload bytea,
    terms jsonb,
    inserted_at timestamptz NOT NULL,
    refused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason text NOT NULL
);

-- Wakes the relays when the transaction commits.
CREATE FUNCTION keyfall_outbox_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('keyfall_outbox', '');
    RETURN NULL;
END
$$;
CREATE TRIGGER keyfall_outbox_wake AFTER INSERT ON keyfall_outbox
    FOR EACH STATEMENT EXECUTE FUNCTION keyfall_outbox_wake();

-- Each returns the id of its row. They find the table wherever they are called from.
CREATE FUNCTION keyfall_schedule(
    key text,
    payload jsonb DEFAULT NULL,
    delay interval DEFAULT NULL,
    due timestamptz DEFAULT NULL,
    terms jsonb DEFAULT NULL
) RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT AS $$
    INSERT INTO keyfall_outbox (key, payload, delay, due, terms)
    VALUES ($1, convert_to($2::text, 'UTF8'), $3, $4, $5)
    RETURNING id
$$;
CREATE FUNCTION keyfall_reschedule(
    key text,
    delay interval DEFAULT NULL,
    due timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT AS $$
    INSERT INTO keyfall_outbox (op, key, delay, due)
    VALUES ('reschedule', $1, $2, $3)
    RETURNING id
$$;
CREATE FUNCTION keyfall_cancel(key text) RETURNS bigint LANGUAGE sql SET search_path FROM CURRENT AS $$
    INSERT INTO keyfall_outbox (op, key)
    VALUES ('cancel', $1)
    RETURNING id
$$;
