-- The table noetl.event as an installed NoETL has it.  For the demo and the tests only:
-- the sidecar never creates or alters anything in NoETL's own schema.
-- By hand: psql -v schema=noetl -f 001_event.sql
\if :{?schema}
\else
\set schema noetl
\endif

CREATE SCHEMA IF NOT EXISTS :"schema";

CREATE TABLE :"schema".event (
    execution_id         bigint NOT NULL,
    catalog_id           bigint NOT NULL,
    event_id             bigint NOT NULL,
    parent_event_id      bigint,
    parent_execution_id  bigint,
    created_at           timestamp without time zone NOT NULL DEFAULT CURRENT_TIMESTAMP,
    event_type           varchar,
    node_id              varchar,
    node_name            varchar,
    node_type            varchar,
    status               varchar,
    duration             double precision,
    context              jsonb,
    result               jsonb,
    meta                 jsonb,
    error                text,
    current_index        integer,
    current_item         text,
    worker_id            varchar,
    distributed_state    varchar,
    context_key          varchar,
    context_value        text,
    trace_component      jsonb,
    stack_trace          text,
    tenant_id            text NOT NULL DEFAULT 'default',
    organization_id      text NOT NULL DEFAULT 'default',
    stream_id            text,
    stream_version       bigint,
    aggregate_id         text,
    aggregate_type       text,
    schema_name          text,
    schema_version       integer NOT NULL DEFAULT 1,
    event_time           timestamptz NOT NULL DEFAULT now(),
    ingest_time          timestamptz NOT NULL DEFAULT now(),
    producer             text,
    causation_id         text,
    correlation_id       text,
    idempotency_key      text,
    payload_ref          jsonb,
    envelope_checksum    text,
    PRIMARY KEY (execution_id, event_id)
) PARTITION BY RANGE (execution_id);
