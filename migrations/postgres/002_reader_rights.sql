-- Read the event table, through the table itself: partitions need no rights of their own,
-- so one that is added next quarter is readable at once.
\if :{?schema}
\else
\set schema noetl
\endif
\if :{?reader}
\else
\set reader noetl_chain_reader
\endif

GRANT USAGE ON SCHEMA :"schema" TO :"reader";
GRANT SELECT ON :"schema".event TO :"reader";
