"""The layout of a store on Citus: distributed tables in place of hash-partitioned ones.

The statements are the same.  Run only where NOETL_TEST_CITUS_URL names a coordinator.
"""

from __future__ import annotations

import re
from typing import Final

from sidecar.sql import quoted, rendered, scripts
from sidecar.store.format import FORMAT_VERSION
from sidecar.store.postgres.dialect import SPREAD
from sidecar.store.postgres.layout import GROUP
from sidecar.store.postgres.url import place_of
from tests.support.storeserver import fresh_url, said

URL_VARIABLE: Final = "NOETL_TEST_CITUS_URL"


async def citus_url(dsn: str) -> str:
    """A new store whose tables are distributed by execution."""
    url = fresh_url(partitions=1, dsn=dsn)
    place = place_of(url)
    text = "".join(rendered(script.text, {"schema": place.schema}) for script in scripts(GROUP))
    plain = re.sub(r"\) PARTITION BY HASH \(execution_id\);", ");", text)
    assert plain.count("PARTITION BY HASH (") < text.count("PARTITION BY HASH (")
    first = next(iter(SPREAD))
    made = "".join(
        f"SELECT keyed('{table}', '{table}'); SELECT create_distributed_table('{table}', 'execution_id'"
        + (");" if table == first else f", colocate_with => '{first}');")
        for table in SPREAD
    )
    await said(
        dsn,
        f"BEGIN; CREATE SCHEMA {quoted(place.schema)}; {plain}; {made}"
        f" INSERT INTO meta (key, value) VALUES ('partitions', '1'), ('servers', ''),"
        f" ('FORMAT_VERSION', '{FORMAT_VERSION}'); COMMIT",
    )
    return url
