"""Tables of messages without a JVM: Iceberg, Delta and Parquet, in a folder or an object store."""
