-- The reader may make, read and drop replication slots; it needs no right on the table for that,
-- so it can read every published table of the cluster.  By a superuser (PostgreSQL 16: also by a
-- role that has REPLICATION and CREATEROLE itself).
-- The sidecar makes its slot at its first start.  When it is taken out of service for good:
--     SELECT pg_drop_replication_slot('noetl_chain');
-- otherwise the server keeps its write-ahead log for a reader that never comes back.
\if :{?reader}
\else
\set reader noetl_chain_reader
\endif

ALTER ROLE :"reader" REPLICATION;
