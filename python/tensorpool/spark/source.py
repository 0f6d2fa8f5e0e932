"""The data source that Spark knows as `tensorpool`."""

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

# Spark hands its own options over with ours.
_SPARKS = frozenset({"checkpointlocation", "queryname"})


class TensorPoolSource(DataSource):
    """Reads recordings and live pools, writes recordings and live streams.

    Made anew in each of Spark's processes, from the options alone.
    """

    @classmethod
    def name(cls) -> str:
        return "tensorpool"

    def schema(self) -> StructType:
        # Spark does not say which read it is for; the reader itself will look at each option.
        given = self._given()
        return spark_schema(Options(given, STREAM if _is_only_for_streams(given) else READ))

    def reader(self, schema: StructType) -> DataSourceReader:
        from .reader import FrameReader

        return FrameReader(self._options(READ), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._options(STREAM)
        if options.is_live:
            from .live_source import LiveReader

            return LiveReader(options, schema)
        from .reader import FrameStreamReader

        return FrameStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .sink import make_writer

        return make_writer(self._options(WRITE), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from .sink import make_stream_writer

        return make_stream_writer(self._options(STREAM_WRITE), schema, overwrite=overwrite)

    def _given(self) -> dict[str, str]:
        return {key: value for key, value in self.options.items() if key.lower() not in _SPARKS}

    def _options(self, use: str) -> Options:
        return Options(self._given(), use)


def _is_only_for_streams(given: dict[str, str]) -> bool:
    return any(is_for(key, STREAM) and not is_for(key, READ) for key in given) or given.get("mode") == "live"
