-- One partition a quarter.  An execution id holds its time of birth: milliseconds since
-- 2024-01-01T00:00Z, shifted left by 22 bits; the bounds are the quarters' first instants.
-- The first one begins a millisecond late, so that the small ids of tests, like ids of
-- another layout, fall into the default partition.
\if :{?schema}
\else
\set schema noetl
\endif

CREATE TABLE :"schema".event_2024_q1_standard PARTITION OF :"schema".event
    FOR VALUES FROM (4194304) TO (32977295769600000);
CREATE TABLE :"schema".event_2024_q2_standard PARTITION OF :"schema".event
    FOR VALUES FROM (32977295769600000) TO (65954591539200000);
CREATE TABLE :"schema".event_2024_q3_standard PARTITION OF :"schema".event
    FOR VALUES FROM (65954591539200000) TO (99294275174400000);
CREATE TABLE :"schema".event_2024_q4_standard PARTITION OF :"schema".event
    FOR VALUES FROM (99294275174400000) TO (132633958809600000);
CREATE TABLE :"schema".event_2025_q1_standard PARTITION OF :"schema".event
    FOR VALUES FROM (132633958809600000) TO (165248866713600000);
CREATE TABLE :"schema".event_2025_q2_standard PARTITION OF :"schema".event
    FOR VALUES FROM (165248866713600000) TO (198226162483200000);
CREATE TABLE :"schema".event_2025_q3_standard PARTITION OF :"schema".event
    FOR VALUES FROM (198226162483200000) TO (231565846118400000);
CREATE TABLE :"schema".event_2025_q4_standard PARTITION OF :"schema".event
    FOR VALUES FROM (231565846118400000) TO (264905529753600000);
CREATE TABLE :"schema".event_2026_q1_standard PARTITION OF :"schema".event
    FOR VALUES FROM (264905529753600000) TO (297520437657600000);
CREATE TABLE :"schema".event_2026_q2_standard PARTITION OF :"schema".event
    FOR VALUES FROM (297520437657600000) TO (330497733427200000);
CREATE TABLE :"schema".event_2026_q3_standard PARTITION OF :"schema".event
    FOR VALUES FROM (330497733427200000) TO (363837417062400000);
CREATE TABLE :"schema".event_2026_q4_standard PARTITION OF :"schema".event
    FOR VALUES FROM (363837417062400000) TO (397177100697600000);
CREATE TABLE :"schema".event_2027_q1_standard PARTITION OF :"schema".event
    FOR VALUES FROM (397177100697600000) TO (429792008601600000);
CREATE TABLE :"schema".event_2027_q2_standard PARTITION OF :"schema".event
    FOR VALUES FROM (429792008601600000) TO (462769304371200000);
CREATE TABLE :"schema".event_2027_q3_standard PARTITION OF :"schema".event
    FOR VALUES FROM (462769304371200000) TO (496108988006400000);
CREATE TABLE :"schema".event_2027_q4_standard PARTITION OF :"schema".event
    FOR VALUES FROM (496108988006400000) TO (529448671641600000);
CREATE TABLE :"schema".event_default PARTITION OF :"schema".event DEFAULT;
