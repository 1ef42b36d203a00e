"""``format("rocketmq")``: the class that Spark looks for; imports the rest when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from contrail.errors import ContrailError, OptionInvalid
from contrail.pipeline.spoken_errors import spoken

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

FORMAT = "rocketmq"


class RocketMqSource(DataSource):
    """Reads and writes the messages of a RocketMQ cluster, and reads a store folder."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @spoken
    def schema(self) -> StructType:
        from contrail.pipeline.columns import default_schema
        from contrail.pipeline.options import body_settings, wants_properties
        from contrail.pipeline.typed.reading import with_typed_fields

        columns = default_schema(wants_properties(self.options))
        return with_typed_fields(columns, body_settings(self.options))

    @spoken
    def reader(self, schema: StructType) -> DataSourceReader:
        from contrail.pipeline.batch_reader import (
            BatchReader,
            FilteringBatchReader,
            OfflineReader,
        )
        from contrail.pipeline.options import SourceSettings

        settings = SourceSettings.of(self.options, streaming=False)
        if settings.store_path is not None:
            return OfflineReader(settings, schema)
        return (FilteringBatchReader if settings.pushdown else BatchReader)(settings, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from contrail.pipeline.options import SourceSettings
        from contrail.pipeline.stream_reader import RefusedStream, StreamReader

        try:
            return StreamReader(SourceSettings.of(self.options, streaming=True), schema)
        except ContrailError as error:
            # Spark 4.3 stops a reader that was never made, and reports only that error.
            return RefusedStream(error)

    @spoken
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from contrail.pipeline.options import SinkSettings
        from contrail.pipeline.writers import batch_writer

        _refuse_overwrite(overwrite)
        return batch_writer(schema, SinkSettings.of(self.options))

    @spoken
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from contrail.pipeline.options import SinkSettings
        from contrail.pipeline.writers import stream_writer

        _refuse_overwrite(overwrite)
        return stream_writer(schema, SinkSettings.of(self.options))


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise OptionInvalid(
            'mode("overwrite"), outputMode("complete"): messages that are stored stay as they are: '
            'use mode("append"), outputMode("append") or outputMode("update")'
        )
