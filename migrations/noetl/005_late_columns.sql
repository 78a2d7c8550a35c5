-- What NoETL added to the table later.  An older install is everything before this file.
\if :{?schema}
\else
\set schema noetl
\endif

ALTER TABLE :"schema".event
    ADD COLUMN IF NOT EXISTS prev_event_id bigint,
    ADD COLUMN IF NOT EXISTS command_id bigint,
    ADD COLUMN IF NOT EXISTS stage_id bigint,
    ADD COLUMN IF NOT EXISTS frame_id bigint;

CREATE INDEX event_execution_prev_idx ON :"schema".event (execution_id, prev_event_id)
    WHERE prev_event_id IS NOT NULL;
