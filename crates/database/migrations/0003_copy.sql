-- The copy: pending jobs of the kinds that ask for it, so that a Redis that is lost can be built again.

-- Numbers the looks at Redis, and the rows of the outbox that were passed on. nextval orders them as
-- they happened: a look with a higher number has seen what a row with a lower one has done.
CREATE SEQUENCE keyfall_copy_looks;

-- One row for each job. A row with `ended_at` is a tombstone, kept for a while.
CREATE TABLE keyfall_copy (
    -- Bytes are compared: pages do not depend on a library.
    key text COLLATE "C" PRIMARY KEY,
    kind text COLLATE "C" NOT NULL,
    shard smallint NOT NULL,
    -- The higher (epoch, version) wins.
    epoch bigint NOT NULL,
    version bigint NOT NULL,
    due_at timestamptz,
    -- As Redis has it: header, steps and payload.
    record bytea,
    -- The look that has brought this version, and its time by the clock of the database.
    look bigint NOT NULL,
    changed_at timestamptz NOT NULL,
    ended_at timestamptz,
    CONSTRAINT keyfall_copy_pending_or_ended CHECK
        ((ended_at IS NULL) = (record IS NOT NULL) AND (due_at IS NULL) = (record IS NULL))
);
CREATE INDEX keyfall_copy_pending ON keyfall_copy (kind, key) WHERE ended_at IS NULL;
CREATE INDEX keyfall_copy_tombstones ON keyfall_copy (ended_at) WHERE ended_at IS NOT NULL;

-- What Redis has told of each ledger, by which one that was emptied or rolled back is known.
CREATE TABLE keyfall_copy_ledgers (
    kind text COLLATE "C" NOT NULL,
    shard smallint NOT NULL,
    epoch bigint NOT NULL,
    -- The number of batches that Redis has acknowledged, or is about to.
    number bigint NOT NULL,
    -- The highest version that was copied.
    through bigint NOT NULL,
    fence bigint NOT NULL,
    -- Whether the copy has all jobs of the ledger.
    filled boolean NOT NULL DEFAULT false,
    -- The clocks of Redis and of the database at the last look.
    clock timestamptz NOT NULL,
    looked_at timestamptz NOT NULL,
    PRIMARY KEY (kind, shard)
);

-- The kinds that are copied. A copier locks the row of a kind while it works on it.
CREATE TABLE keyfall_copy_kinds (
    kind text COLLATE "C" PRIMARY KEY
);

-- The data set of Redis that was copied, and why the copy was stopped.
CREATE TABLE keyfall_copy_state (
    one boolean PRIMARY KEY DEFAULT true CONSTRAINT keyfall_copy_has_one_state CHECK (one),
    data_set text NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    stopped text,
    -- The rules of archives, copies and limits, as Redis stores them: an object of texts.
    rules jsonb NOT NULL DEFAULT '{}'
);

-- Rows of the outbox that were passed on, of kinds that are copied, until the copy has their effect.
-- After the loss of Redis they are put back into the outbox.
CREATE TABLE keyfall_outbox_kept (
    id bigint NOT NULL,
    op text NOT NULL,
    key text COLLATE "C" NOT NULL,
    due timestamptz,
    delay interval,
    payload bytea,
    terms jsonb,
    inserted_at timestamptz NOT NULL,
    kind text COLLATE "C" NOT NULL,
    number bigint NOT NULL DEFAULT nextval('keyfall_copy_looks'),
    passed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, number)
);
