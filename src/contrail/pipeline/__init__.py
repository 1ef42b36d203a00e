"""RocketMQ in Spark: a data source for topics and store folders, and the jobs built on it."""
