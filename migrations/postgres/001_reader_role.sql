-- The role the sidecar connects as: it can read the log and nothing else.
-- By hand, as a role that may create roles:
--     psql -v reader=noetl_chain_reader -v schema=noetl -f 001_reader_role.sql -f 002_reader_rights.sql
-- and give it a password afterwards (\password in psql; it never stands in a file).
\if :{?reader}
\else
\set reader noetl_chain_reader
\endif

CREATE ROLE :"reader" LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;

-- A second fence: even a right granted later by mistake writes nothing.
ALTER ROLE :"reader" SET default_transaction_read_only = on;
