"""The Spark data source `tensorpool`. Imports the readers and writers only when they are used."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .options import READ, STREAM, STREAM_WRITE, WRITE, Options, is_for, spark_schema

# Spark passes its own options together with ours.
_SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname"})


class TensorPoolSource(DataSource):
    """Reads recordings and live streams, writes recordings and publishes to live streams.

    Each of Spark's processes creates its own instance from the options.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "tensorpool"

    def schema(self) -> StructType:
        """The columns that the options select."""
        # Spark does not tell whether it is for a batch or a stream; the reader validates each option.
        given = self._given()
        return spark_schema(Options(given, STREAM if _is_only_for_streams(given) else READ))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        from .reader import FrameReader

        return FrameReader(self._options(READ), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a streaming query."""
        options = self._options(STREAM)
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
        return {key: value for key, value in self.options.items() if key.lower() not in _SPARK_OPTIONS}

    def _options(self, use: str) -> Options:
        return Options(self._given(), use)


def _is_only_for_streams(given: dict[str, str]) -> bool:
    return any(is_for(key, STREAM) and not is_for(key, READ) for key in given) or given.get("mode") == "live"
