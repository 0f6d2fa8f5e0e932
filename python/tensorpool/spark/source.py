"""The Spark data source `tensorpool`. Imports the readers and writers only when they are used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

if TYPE_CHECKING:
    from .table_reader import TablePlan

from .options import READ, STREAM, STREAM_WRITE, WRITE, Options, is_for, is_option, spark_schema

# Spark passes its own options together with ours.
_SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname"})
# The properties of a catalog's table, beside which its options have a prefix.
_CATALOG_PROPERTIES = frozenset({"owner", "provider", "location", "is_managed_location", "external"})
_PREFIX = "option."
# Spark keeps the schema of a catalog's table, and passes it to a reader without the options of the table. So
# the first column carries them.
_OPTIONS_KEY = "tensorpool.options"


class TensorPoolSource(DataSource):
    """Reads recordings, tables and live streams, writes recordings and publishes to live streams.

    Spark pickles the instance that it has asked for the schema, and asks the copies for readers and writers.
    """

    _plan: TablePlan | None = None

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "tensorpool"

    def schema(self) -> StructType:
        """The columns that the options select."""
        # Spark does not pass on whether it is for a batch or a stream; the reader validates each option.
        given = self._given()
        if any(key.lower() == "table" for key in given):
            from .table_reader import table_plan

            self._plan = table_plan(Options(given, READ))
            schema = self._plan.schema
        else:
            schema = spark_schema(Options(given, STREAM if _is_only_for_streams(given) else READ))
        return with_options(schema, given) if is_of_catalog(self.options) else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        options = Options(with_table_options(self._given(), schema), READ)
        if options["table"] is not None:
            from .table_reader import TableReader

            return TableReader(options, schema, self._plan)
        from .reader import FrameReader

        return FrameReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a streaming query."""
        options = Options(with_table_options(self._given(), schema), STREAM)
        if options.is_live:
            from .live_source import LiveReader

            return LiveReader(options, schema)
        from .reader import FrameStreamReader

        return FrameStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch query."""
        from .sink import make_writer

        return make_writer(self._options(WRITE), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of a streaming query."""
        from .sink import make_stream_writer

        return make_stream_writer(self._options(STREAM_WRITE), schema, overwrite=overwrite)

    def _given(self) -> dict[str, str]:
        return own_options(self.options)

    def _options(self, use: str) -> Options:
        return Options(self._given(), use)


def _is_only_for_streams(given: dict[str, str]) -> bool:
    return any(is_for(key, STREAM) and not is_for(key, READ) for key in given) or given.get("mode") == "live"


def own_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options of this source among those that Spark passes."""
    options = {key: value for key, value in given.items() if key.lower() not in _SPARK_OPTIONS}
    if not is_of_catalog(options):
        return options
    # A table of a catalog: the other properties are the user's, and mean nothing here.
    own = {key.lower(): value for key, value in options.items() if is_option(key)}
    own |= {
        key.lower().removeprefix(_PREFIX): value
        for key, value in options.items()
        if key.lower().startswith(_PREFIX)
    }
    own.pop("serialization.format", None)
    # A table with LOCATION has its path there, and only there.
    if "path" not in own and (location := next((options[k] for k in options if k.lower() == "location"), "")):
        own["path"] = location
    return own


def is_of_catalog(given: Mapping[str, str]) -> bool:
    """Whether Spark passes the properties of a catalog's table."""
    names = {key.lower() for key in given}
    return bool(names & _CATALOG_PROPERTIES) or any(name.startswith(_PREFIX) for name in names)


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a catalog's table, with the options of the table."""
    first, *others = schema.fields
    metadata = {**(first.metadata or {}), _OPTIONS_KEY: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def with_table_options(given: dict[str, str], schema: StructType) -> dict[str, str]:
    """The options of a read: the given ones, with those of the catalog's table that is read.

    A read with a path or a mode is of its own, also if its schema is of a table.
    """
    if {key.lower() for key in given} & {"path", "mode"}:
        return given
    for field in schema.fields:
        if text := (field.metadata or {}).get(_OPTIONS_KEY):
            own: dict[str, str] = json.loads(text)
            return own | {key.lower(): value for key, value in given.items()}
    return given
