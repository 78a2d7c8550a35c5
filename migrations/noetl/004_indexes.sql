-- The indexes a reader of the log can rely on.  None leads with event_id.
\if :{?schema}
\else
\set schema noetl
\endif

CREATE INDEX event_created_at_idx ON :"schema".event (created_at);
CREATE INDEX event_execution_idx ON :"schema".event (execution_id);
CREATE INDEX event_execution_event_idx ON :"schema".event (execution_id, event_id DESC);
CREATE INDEX event_execution_type_event_idx ON :"schema".event (execution_id, event_type, event_id DESC);
