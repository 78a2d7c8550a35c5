-- Chain store, layout 1 (FORMAT_VERSION 1), PostgreSQL.
--
-- The columns are those of migrations/store/0001_layout.sql.  What belongs to one execution is
-- hash-partitioned by execution_id; what belongs to the store as a whole is not.  A leaf may stand
-- on another server, so the keys are the leaves' own and no statement leans on one of a parent.
-- Applied in one transaction together with the marker FORMAT_VERSION.

SET LOCAL search_path = :"schema", pg_temp;

CREATE TABLE meta (
  key   text COLLATE "C" NOT NULL PRIMARY KEY,
  value text COLLATE "C" NOT NULL
);

-- The one writer.  Whoever opens the store raises the epoch; every write transaction counts one unit
-- under its own epoch, so that a writer whose epoch is over can commit nothing any more, and one that
-- lost its connection in a commit can tell whether it was done.
CREATE TABLE writer (
  one      boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
  epoch    bigint NOT NULL,
  unit     bigint NOT NULL,
  holder   text COLLATE "C" NOT NULL,
  taken_at timestamptz NOT NULL
);
INSERT INTO writer (epoch, unit, holder, taken_at) VALUES (0, 0, 'nobody', now());

CREATE FUNCTION fence(bigint, bigint) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE writer SET unit = $2 WHERE epoch = $1 AND unit = $2 - 1;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'NC001', MESSAGE = (SELECT holder FROM writer);
  END IF;
END $$;

-- Two functions and an aggregate that SQLite has; NULL makes NULL, as there.
CREATE FUNCTION max(bigint, bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
  $$ SELECT CASE WHEN $1 IS NULL OR $2 IS NULL THEN NULL WHEN $1 >= $2 THEN $1 ELSE $2 END $$;
CREATE FUNCTION min(bigint, bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
  $$ SELECT CASE WHEN $1 IS NULL OR $2 IS NULL THEN NULL WHEN $1 <= $2 THEN $1 ELSE $2 END $$;
CREATE AGGREGATE total(bigint) (SFUNC = int8pl, STYPE = bigint, INITCOND = '0');

-- One execution's

CREATE TABLE partition (
  execution_id        bigint NOT NULL,
  parent_execution_id bigint,
  head_seq            bigint NOT NULL DEFAULT 0,
  head_event_id       bigint,
  wm_first            bigint,
  wm_through          bigint,
  cov_root            bigint,
  cov_total           bigint,
  held                bigint NOT NULL DEFAULT 0,
  rows_seen           bigint NOT NULL DEFAULT 0,
  head_anchor         bigint,
  head_epoch          text COLLATE "C",
  label               text COLLATE "C",
  labelled_at         bigint,
  revoked_reason      text COLLATE "C",
  revoked_at          bigint,
  terminal            bigint NOT NULL DEFAULT 0,
  verdict             text COLLATE "C",
  verdict_at          bigint,
  counted_kinds       text COLLATE "C" NOT NULL DEFAULT '',
  first_seen_at       bigint,
  last_change_at      bigint,
  verdict_rows        bigint NOT NULL DEFAULT 0,
  head_commit_lsn     text COLLATE "C"
) PARTITION BY HASH (execution_id);

CREATE TABLE event (
  execution_id        bigint NOT NULL,
  exec_seq            bigint NOT NULL,
  event_id            bigint NOT NULL,
  prev_event_id       bigint,
  parent_execution_id bigint,
  event_type          text COLLATE "C" NOT NULL,
  body                text COLLATE "C" NOT NULL,
  gseq                bigint,
  origin              text COLLATE "C",
  seen_at             bigint,
  commit_lsn          text COLLATE "C"
) PARTITION BY HASH (execution_id);

CREATE TABLE due (
  execution_id  bigint NOT NULL,
  due_at        bigint NOT NULL,
  reread        bigint,
  changed       bigint,
  labelled      bigint,
  first_seen_at bigint,
  last_row_at   bigint,
  terminal_seen bigint,
  pending_key   text COLLATE "C",
  pending_since bigint,
  tries         bigint NOT NULL DEFAULT 0
) PARTITION BY HASH (execution_id);

CREATE TABLE rejoin (
  execution_id  bigint NOT NULL,
  tip_event_id  bigint NOT NULL,
  root_event_id bigint NOT NULL,
  xid           bigint NOT NULL,
  anchor        bigint,
  epoch         text COLLATE "C" NOT NULL,
  joined_at     bigint NOT NULL,
  withdrawn_at  bigint,
  tip_lsn       text COLLATE "C",
  root_lsn      text COLLATE "C"
) PARTITION BY HASH (execution_id);

CREATE TABLE d3_projection (
  proj_seq     bigint NOT NULL,
  execution_id bigint NOT NULL,
  status       text COLLATE "C" NOT NULL,
  data         text COLLATE "C" NOT NULL
) PARTITION BY HASH (execution_id);

CREATE TABLE audit_seen (
  execution_id bigint NOT NULL,
  seen         text COLLATE "C" NOT NULL
) PARTITION BY HASH (execution_id);

-- The store's

CREATE TABLE tail_cursor (
  lane      text COLLATE "C" NOT NULL PRIMARY KEY,
  horizon   bigint,
  epoch     text COLLATE "C" NOT NULL,
  scope     text COLLATE "C" NOT NULL,
  tree      text COLLATE "C" NOT NULL,
  polled_at bigint NOT NULL
);

CREATE TABLE server_epoch (
  epoch             text COLLATE "C" NOT NULL PRIMARY KEY,
  system_identifier text COLLATE "C",
  timeline          text COLLATE "C",
  started_at        text COLLATE "C",
  stats_reset       text COLLATE "C",
  first_seen_at     bigint NOT NULL,
  last_seen_at      bigint NOT NULL
);

CREATE TABLE finding (
  finding_id       bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  execution_id     bigint NOT NULL,
  verdict          text COLLATE "C" NOT NULL,
  kind             text COLLATE "C",
  position         bigint,
  detail           text COLLATE "C" NOT NULL DEFAULT '',
  log_event        text COLLATE "C",
  store_event      text COLLATE "C",
  evidence         text COLLATE "C",
  found_at         bigint NOT NULL,
  resolved_at      bigint,
  acknowledged_at  bigint,
  acknowledged_why text COLLATE "C"
);
CREATE INDEX finding_by_execution ON finding (execution_id, found_at);
CREATE INDEX finding_open ON finding (verdict) WHERE resolved_at IS NULL AND acknowledged_at IS NULL;

CREATE TABLE coverage_window (
  window_start bigint NOT NULL,
  verdict      text COLLATE "C" NOT NULL,
  executions   bigint NOT NULL,
  events       bigint NOT NULL,
  PRIMARY KEY (window_start, verdict)
);

CREATE TABLE audit_progress (
  round       bigint NOT NULL PRIMARY KEY,
  after_id    bigint,
  started_at  bigint NOT NULL,
  finished_at bigint,
  executions  bigint NOT NULL DEFAULT 0,
  differing   bigint NOT NULL DEFAULT 0
);

CREATE TABLE replica_position (
  replica  text COLLATE "C" NOT NULL PRIMARY KEY,
  gseq     bigint NOT NULL,
  moved_at bigint NOT NULL
);

CREATE TABLE sequence (
  dataset text COLLATE "C" NOT NULL PRIMARY KEY,
  high    bigint NOT NULL
);

INSERT INTO sequence (dataset, high) VALUES ('d3_projection', 0);

CREATE TABLE apply_cursor (
  shard bigint NOT NULL PRIMARY KEY,
  seq   bigint NOT NULL
);

CREATE TABLE d8_runtime (
  op_seq    bigint NOT NULL PRIMARY KEY,
  worker_id text COLLATE "C" NOT NULL,
  event     text COLLATE "C" NOT NULL CHECK (event IN ('register', 'heartbeat', 'deregister')),
  heartbeat bigint NOT NULL,
  contract  text COLLATE "C" NOT NULL
);
CREATE INDEX d8_runtime_latest ON d8_runtime (worker_id, op_seq);

-- Which server this is; the log's must be another one.
CREATE VIEW server_identity (system_identifier) AS
  SELECT system_identifier::text COLLATE "C" FROM pg_control_system();

-- Leaves

-- The keys and indexes of one leaf, wherever it stands.
CREATE FUNCTION keyed(parent text, leaf text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  key text := CASE parent
    WHEN 'event' THEN 'execution_id, exec_seq'
    WHEN 'rejoin' THEN 'execution_id, root_event_id'
    WHEN 'd3_projection' THEN 'execution_id, proj_seq'
    ELSE 'execution_id' END;
BEGIN
  EXECUTE format('ALTER TABLE %I ADD PRIMARY KEY (%s)', leaf, key);
  IF parent = 'event' THEN
    EXECUTE format('CREATE UNIQUE INDEX ON %I (execution_id, event_id)', leaf);
  ELSIF parent = 'partition' THEN
    EXECUTE format('CREATE INDEX ON %I (verdict, last_change_at, execution_id)', leaf);
    EXECUTE format('CREATE INDEX ON %I (last_change_at DESC NULLS LAST, execution_id DESC)', leaf);
  ELSIF parent = 'due' THEN
    EXECUTE format('CREATE INDEX ON %I (due_at, execution_id)', leaf);
  END IF;
END $$;

-- Make the leaves.  Without servers all stand here; else remainder i stands on servers[1 + i mod n].
CREATE FUNCTION spread(modulus int, servers text[], far text) RETURNS void
  LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  parent text;
  leaf text;
  server text;
BEGIN
  FOREACH parent IN ARRAY ARRAY['partition', 'event', 'due', 'rejoin', 'd3_projection', 'audit_seen'] LOOP
    FOR i IN 0 .. modulus - 1 LOOP
      leaf := parent || '_' || i;
      IF cardinality(servers) = 0 THEN
        EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES WITH (MODULUS %s, REMAINDER %s)',
                       leaf, parent, modulus, i);
        PERFORM keyed(parent, leaf);
      ELSE
        server := servers[1 + i % cardinality(servers)];
        EXECUTE format('CREATE FOREIGN TABLE %I PARTITION OF %I FOR VALUES WITH (MODULUS %s, REMAINDER %s)'
                       ' SERVER %I OPTIONS (schema_name %L, table_name %L)',
                       leaf, parent, modulus, i, server, far, leaf);
      END IF;
    END LOOP;
  END LOOP;
  FOREACH server IN ARRAY servers LOOP
    EXECUTE format('CREATE FOREIGN TABLE %I (system_identifier text) SERVER %I'
                   ' OPTIONS (schema_name %L, table_name %L)',
                   'identity_' || server, server, far, 'server_identity');
  END LOOP;
  INSERT INTO meta (key, value) VALUES ('partitions', modulus::text), ('servers', array_to_string(servers, ','));
END $$;

-- Make the plain tables that another server's foreign tables point at.
CREATE FUNCTION lend(modulus int, place int, places int) RETURNS void
  LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  parent text;
  leaf text;
BEGIN
  FOREACH parent IN ARRAY ARRAY['partition', 'event', 'due', 'rejoin', 'd3_projection', 'audit_seen'] LOOP
    FOR i IN 0 .. modulus - 1 LOOP
      CONTINUE WHEN i % places <> place;
      leaf := parent || '_' || i;
      EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS)', leaf, parent);
      PERFORM keyed(parent, leaf);
    END LOOP;
  END LOOP;
END $$;
