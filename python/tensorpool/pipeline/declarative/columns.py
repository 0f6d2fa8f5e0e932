"""Columns of the tables for Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ..schemas import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema)


def declared(df: DataFrame, schema: pa.Schema) -> DataFrame:
    """The columns of the schema, in its order, for `mapInArrow` and `applyInArrow`.

    On Spark Connect those ask the server which columns there are, and while a pipeline is put together it
    does not answer. A frame that knows its columns does not ask.
    """
    chosen = df.select(*schema.names)
    if "_cached_schema" in vars(chosen):
        vars(chosen)["_cached_schema"] = spark_schema(schema)
    return chosen


def names(table: Table) -> list[str]:
    """All columns, as a reader of the engine's table sees them."""
    return list(table.whole.names)


def date_of(column: str) -> str:
    """The UTC day of nanoseconds, whatever zone the session is in."""
    return f"cast(date_from_unix_date(cast({column} div 86400000000000 as int)) as string)"
