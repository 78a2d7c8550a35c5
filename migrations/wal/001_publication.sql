-- For NOETL_CHAIN_TAIL=wal only, by the owner of the event table, who needs CREATE on the database:
--     psql -v publication=noetl_chain -v schema=noetl -f 001_publication.sql
-- All changes, whichever partition they are made in, come under the table's own name.
\if :{?schema}
\else
\set schema noetl
\endif
\if :{?publication}
\else
\set publication noetl_chain
\endif

CREATE PUBLICATION :"publication" FOR TABLE :"schema".event
  WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true);
