-- What a result may look like.  NOT VALID as in NoETL: rows older than the check may violate
-- it, new ones may not.  After the partitions, because one that is created under a check
-- takes it over as validated.
\if :{?schema}
\else
\set schema noetl
\endif

ALTER TABLE :"schema".event ADD CONSTRAINT event_result_shape CHECK (
    result IS NULL
    OR (
        jsonb_typeof(result) = 'object'
        AND jsonb_typeof(result -> 'status') IS NOT DISTINCT FROM 'string'
        AND (NOT result ? 'reference' OR jsonb_typeof(result -> 'reference') = 'object')
        AND (NOT result ? 'context' OR jsonb_typeof(result -> 'context') = 'object')
        AND result - ARRAY['status', 'reference', 'context'] = '{}'::jsonb
    )
) NOT VALID;
