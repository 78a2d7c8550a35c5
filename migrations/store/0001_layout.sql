-- Chain store, layout 1 (FORMAT_VERSION 1), SQLite.
--
-- Times are INTEGER microseconds since 1970 by the store's own clock, which only moves forward;
-- tail_cursor.polled_at is Postgres's clock.  Ids are 64-bit integers.  The file that creates
-- these tables also writes FORMAT_VERSION into meta, in one transaction.

CREATE TABLE meta (
  key   TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;

-- One row an execution: its head, what it may claim, and what the comparator last said.
CREATE TABLE partition (
  execution_id        INTEGER NOT NULL PRIMARY KEY,
  parent_execution_id INTEGER,
  head_seq            INTEGER NOT NULL DEFAULT 0,
  head_event_id       INTEGER,
  wm_first            INTEGER,
  wm_through          INTEGER,
  cov_root            INTEGER,
  cov_total           INTEGER,
  held                INTEGER NOT NULL DEFAULT 0,
  rows_seen           INTEGER NOT NULL DEFAULT 0,
  head_anchor         INTEGER,
  head_epoch          TEXT,
  label               TEXT,
  labelled_at         INTEGER,
  revoked_reason      TEXT,
  revoked_at          INTEGER,
  terminal            INTEGER NOT NULL DEFAULT 0,
  verdict             TEXT,
  verdict_at          INTEGER,
  counted_kinds       TEXT NOT NULL DEFAULT '',
  first_seen_at       INTEGER,
  last_change_at      INTEGER,
  verdict_rows        INTEGER NOT NULL DEFAULT 0,
  head_commit_lsn     TEXT
) STRICT;

-- What coverage counts, and nothing else of the row.
CREATE INDEX partition_by_verdict ON partition
  (verdict, last_change_at, verdict_rows, rows_seen, head_seq, first_seen_at);

-- Clustered by execution and sequence: a chain is one range of neighbouring rows.
CREATE TABLE event (
  execution_id        INTEGER NOT NULL,
  exec_seq            INTEGER NOT NULL,
  event_id            INTEGER NOT NULL,
  prev_event_id       INTEGER,
  parent_execution_id INTEGER,
  event_type          TEXT NOT NULL,
  body                TEXT NOT NULL,
  gseq                INTEGER,
  origin              TEXT,
  seen_at             INTEGER,
  commit_lsn          TEXT,
  PRIMARY KEY (execution_id, exec_seq)
) STRICT, WITHOUT ROWID;

-- Write-once, and the small index that counts and sums an execution without its bodies.
CREATE UNIQUE INDEX event_identity ON event (execution_id, event_id);

CREATE TABLE tail_cursor (
  lane      TEXT NOT NULL PRIMARY KEY,
  horizon   INTEGER,
  epoch     TEXT NOT NULL,
  scope     TEXT NOT NULL,
  tree      TEXT NOT NULL,
  polled_at INTEGER NOT NULL
) STRICT;

-- The durable work list: one row for every execution with something new.
CREATE TABLE due (
  execution_id  INTEGER NOT NULL PRIMARY KEY,
  due_at        INTEGER NOT NULL,
  reread        INTEGER,
  changed       INTEGER,
  labelled      INTEGER,
  first_seen_at INTEGER,
  last_row_at   INTEGER,
  terminal_seen INTEGER,
  pending_key   TEXT,
  pending_since INTEGER,
  tries         INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX due_order ON due (due_at);

CREATE TABLE server_epoch (
  epoch             TEXT NOT NULL PRIMARY KEY,
  system_identifier TEXT,
  timeline          TEXT,
  started_at        TEXT,
  stats_reset       TEXT,
  first_seen_at     INTEGER NOT NULL,
  last_seen_at      INTEGER NOT NULL
) STRICT;

-- What the comparator found, with bounded evidence.
CREATE TABLE finding (
  finding_id    INTEGER NOT NULL PRIMARY KEY,
  execution_id  INTEGER NOT NULL,
  verdict       TEXT NOT NULL,
  kind          TEXT,
  position      INTEGER,
  detail        TEXT NOT NULL DEFAULT '',
  log_event     TEXT,
  store_event   TEXT,
  evidence      TEXT,
  found_at      INTEGER NOT NULL,
  resolved_at   INTEGER,
  acknowledged_at  INTEGER,
  acknowledged_why TEXT
) STRICT;

CREATE INDEX finding_by_execution ON finding (execution_id, found_at);

CREATE TABLE coverage_window (
  window_start INTEGER NOT NULL,
  verdict      TEXT NOT NULL,
  executions   INTEGER NOT NULL,
  events       INTEGER NOT NULL,
  PRIMARY KEY (window_start, verdict)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit_progress (
  round            INTEGER NOT NULL PRIMARY KEY,
  after_id         INTEGER,
  started_at       INTEGER NOT NULL,
  finished_at      INTEGER,
  executions       INTEGER NOT NULL DEFAULT 0,
  differing        INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE replica_position (
  replica   TEXT NOT NULL PRIMARY KEY,
  gseq      INTEGER NOT NULL,
  moved_at  INTEGER NOT NULL
) STRICT;

-- The highest number ever given out, by what it numbers; deletion never lowers it.
-- 'event': event.gseq.  'clock': the greatest time this store was ever given.
CREATE TABLE sequence (
  dataset TEXT NOT NULL PRIMARY KEY,
  high    INTEGER NOT NULL
) STRICT;

CREATE TABLE apply_cursor (
  shard INTEGER NOT NULL PRIMARY KEY,
  seq   INTEGER NOT NULL
) STRICT;

CREATE TABLE rejoin (
  execution_id  INTEGER NOT NULL,
  tip_event_id  INTEGER NOT NULL,
  root_event_id INTEGER NOT NULL,
  xid           INTEGER NOT NULL,
  anchor        INTEGER,
  epoch         TEXT NOT NULL,
  joined_at     INTEGER NOT NULL,
  withdrawn_at  INTEGER,
  tip_lsn       TEXT,
  root_lsn      TEXT,
  PRIMARY KEY (execution_id, root_event_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE d3_projection (
  proj_seq     INTEGER NOT NULL PRIMARY KEY,
  execution_id INTEGER NOT NULL,
  status       TEXT NOT NULL,
  data         TEXT NOT NULL
) STRICT;

CREATE INDEX d3_projection_latest ON d3_projection (execution_id, proj_seq);

CREATE TABLE d8_runtime (
  op_seq    INTEGER NOT NULL PRIMARY KEY,
  worker_id TEXT NOT NULL,
  event     TEXT NOT NULL CHECK (event IN ('register', 'heartbeat', 'deregister')),
  heartbeat INTEGER NOT NULL,
  contract  TEXT NOT NULL
) STRICT;

CREATE INDEX d8_runtime_latest ON d8_runtime (worker_id, op_seq);

-- The reference's keys and values, for a person with the sqlite3 shell.
CREATE VIEW chain_keys (key, value) AS
  SELECT key, value FROM meta WHERE key = 'FORMAT_VERSION'
UNION ALL
  SELECT 'chain/' || execution_id || '/ev/' || event_id,
         '{"exec_seq":' || exec_seq
         || ',"event_id":"' || event_id || '"'
         || CASE WHEN prev_event_id IS NULL THEN '' ELSE ',"prev_event_id":"' || prev_event_id || '"' END
         || ',"execution_id":"' || execution_id || '"'
         || CASE WHEN parent_execution_id IS NULL THEN ''
                 ELSE ',"parent_execution_id":"' || parent_execution_id || '"' END
         || ',"payload":' || json_quote(body) || '}'
    FROM event
UNION ALL
  SELECT 'chain/' || execution_id || '/seq/' || printf('%020d', exec_seq), CAST(event_id AS TEXT)
    FROM event
UNION ALL
  SELECT 'chain/' || execution_id || '/head', head_seq || ':' || head_event_id
    FROM partition WHERE head_seq > 0
UNION ALL
  SELECT 'chain/' || execution_id || '/wm', wm_first || ':' || wm_through
    FROM partition WHERE wm_first IS NOT NULL
UNION ALL
  SELECT 'chain/' || execution_id || '/cov', coalesce(cov_root, '') || ':' || cov_total
    FROM partition WHERE cov_total IS NOT NULL
UNION ALL
  SELECT 'CURSOR/shard-' || shard, CAST(seq AS TEXT) FROM apply_cursor;
