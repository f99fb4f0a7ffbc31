-- The archive: a row for each job that has ended. It is partitioned by the time for which a row is
-- kept and by the month of the end, so that whole partitions are dropped when their time is over.
CREATE TABLE keyfall_archive (
    ended_at timestamptz NOT NULL,
    -- Bytes are compared: an index serves a prefix, and the order does not depend on a library.
    key text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    -- done, skipped, cancelled, replaced, buried.
    how text COLLATE "C" NOT NULL,
    -- For how many months after the end, 0 for ever.
    keep_months smallint NOT NULL,
    accepted_at timestamptz NOT NULL,
    -- When it was due last, and when its last run began.
    due_at timestamptz,
    begun_at timestamptz,
    attempts integer NOT NULL,
    -- From due_at to begun_at, and from begun_at to ended_at.
    lag_ms bigint,
    duration_ms bigint,
    worker text,
    error text,
    -- The headers that the job was scheduled with, an object of texts.
    headers jsonb,
    -- The payload, if it is kept, and its size in any case.
    payload bytea,
    payload_bytes integer NOT NULL,
    fence bigint,
    -- The number of the dead letter.
    letter bigint,
    -- The occurrence of a recurring job.
    occurrence_at timestamptz,
    -- The header of its record in Redis, with the terms of the job.
    header jsonb,
    -- A row that is handed in again is the same row. The index also serves a key and a prefix.
    CONSTRAINT keyfall_archive_pkey PRIMARY KEY (key, ended_at, accepted_at, keep_months),
    CONSTRAINT keyfall_keep_months_is_in_range CHECK (keep_months BETWEEN 0 AND 1200)
) PARTITION BY LIST (keep_months);
CREATE INDEX keyfall_archive_by_time ON keyfall_archive (ended_at);
-- With keyfall_archive_kinds, for a kind, for an end, and for both.
CREATE INDEX keyfall_archive_by_kind ON keyfall_archive (kind, how, ended_at);
CREATE INDEX keyfall_archive_by_word ON keyfall_archive USING gin (to_tsvector('simple', error))
    WHERE error IS NOT NULL;

-- The kinds and ends that the archive has, so that a search goes from one to the next.
CREATE TABLE keyfall_archive_kinds (
    kind text COLLATE "C" NOT NULL,
    how text COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, how)
);

-- Makes a partition of `parent`, unless there is one. Attaching it holds up neither queries nor
-- writers, as creating it in its place would.
CREATE FUNCTION keyfall_archive_attach(parent text, part text, bounds text, below text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass(part) IS NULL THEN
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL) %s', part, parent, below);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES %s', parent, part, bounds);
    END IF;
END
$$;

-- Makes the partitions for rows that are kept for so many months and ended in these months (UTC).
-- Months in which nothing can have ended, before 2020 and from 2100, share two partitions: a clock
-- that is wrong makes no thousands of them. Runs with the rights of the owner of the tables; the
-- lock lets one program at a time make or drop partitions, and writers and queries go on.
CREATE FUNCTION keyfall_archive_prepare(keep smallint[], ended timestamptz[])
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET TimeZone = 'UTC' AS $$
DECLARE
    row record;
    kept text;
BEGIN
    FOR row IN
        SELECT months, part, bounds FROM (
            SELECT DISTINCT months, CASE
                WHEN at < '2020-01-01' THEN date '2019-12-01'
                WHEN at >= '2100-01-01' THEN date '2100-01-01'
                ELSE date_trunc('month', at)::date END AS first
            FROM unnest(keep, ended) AS asked(months, at)
        ) wanted, LATERAL (SELECT
            format('keyfall_archive_%s_', months) || CASE
                WHEN first < '2020-01-01' THEN 'before_2020'
                WHEN first >= '2100-01-01' THEN 'after_2099'
                ELSE to_char(first, 'YYYY_MM') END AS part,
            CASE
                WHEN first < '2020-01-01' THEN 'FROM (MINVALUE) TO (''2020-01-01 00:00+00'')'
                WHEN first >= '2100-01-01' THEN 'FROM (''2100-01-01 00:00+00'') TO (MAXVALUE)'
                ELSE format('FROM (%L) TO (%L)', to_char(first, 'YYYY-MM-01 00:00+00'),
                    to_char(first + interval '1 month', 'YYYY-MM-01 00:00+00')) END AS bounds
        ) named
        WHERE months BETWEEN 0 AND 1200 AND to_regclass(part) IS NULL ORDER BY 1, 2
    LOOP
        IF current_setting('server_encoding') <> 'UTF8' THEN
            RAISE EXCEPTION 'this database has the encoding %, and the archive needs UTF8',
                current_setting('server_encoding') USING ERRCODE = 'feature_not_supported';
        END IF;
        LOCK TABLE ONLY keyfall_archive IN SHARE UPDATE EXCLUSIVE MODE;
        kept := 'keyfall_archive_' || row.months;
        PERFORM keyfall_archive_attach('keyfall_archive', kept,
            format('IN (%s)', row.months), 'PARTITION BY RANGE (ended_at)');
        PERFORM keyfall_archive_attach(kept, row.part, row.bounds, '');
    END LOOP;
END
$$;

-- Drops the oldest partition whose time is over, and returns its name; null if there is none. What
-- is kept for ever has no end, nor have the two partitions for months that cannot be. It gives up
-- soon if a query holds the partition, since other queries wait behind it.
CREATE FUNCTION keyfall_archive_drop_expired()
RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET TimeZone = 'UTC' SET lock_timeout = '200ms' AS $$
DECLARE
    expired text;
BEGIN
    LOCK TABLE ONLY keyfall_archive IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT part.relname INTO expired
    FROM pg_inherits kept
    JOIN pg_inherits months ON months.inhparent = kept.inhrelid
    JOIN pg_class part ON part.oid = months.inhrelid,
    LATERAL regexp_match(part.relname, '^keyfall_archive_([0-9]+)_([0-9]{4})_([0-9]{2})$') name
    WHERE kept.inhparent = to_regclass('keyfall_archive') AND name[1]::integer > 0
        AND make_date(name[2]::integer, name[3]::integer, 1)
            + make_interval(months => name[1]::integer + 1) <= clock_timestamp()
    ORDER BY name[2], name[3], name[1]::integer LIMIT 1;
    IF expired IS NOT NULL THEN
        EXECUTE format('DROP TABLE %I', expired);
    END IF;
    RETURN expired;
END
$$;

-- The functions of the owner find its tables and nothing else, whatever the caller has set, and are
-- called by the roles that were granted them.
DO $$
DECLARE
    called text;
BEGIN
    FOREACH called IN ARRAY ARRAY['keyfall_archive_attach(text, text, text, text)',
        'keyfall_archive_prepare(smallint[], timestamptz[])', 'keyfall_archive_drop_expired()']
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', called, current_schema());
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', called);
    END LOOP;
END
$$;
