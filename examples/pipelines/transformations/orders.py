"""Orders of a topic as a table, sales by region out of it, and large orders to another topic."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


@dp.table(comment="Every order that was sent to the topic, parsed.")
def orders() -> DataFrame:
    messages = (
        spark.readStream.format("rocketmq")
        .schema("keys string, tags string, body binary, storeTimestamp timestamp")
        .option("namesrvAddr", NAMESRV)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    return messages.selectExpr(
        "keys as id",
        "tags as state",
        "try_variant_get(try_parse_json(cast(body as string)), '$.region', 'string') as region",
        "try_variant_get(try_parse_json(cast(body as string)), '$.amount', 'double') as amount",
        "storeTimestamp as ordered_at",
    )


@dp.materialized_view(comment="What was ordered, by region.")
def sales() -> DataFrame:
    return spark.read.table("orders").groupBy("region").agg({"amount": "sum", "id": "count"})


dp.create_sink(
    name="large_orders",
    format="rocketmq",
    options={"namesrvAddr": NAMESRV, "topic": "large-orders"},
)


@dp.append_flow(target="large_orders")
def notice_large_orders() -> DataFrame:
    large = spark.readStream.table("orders").where("amount >= 1000")
    return large.selectExpr(
        "id as keys", "'large' as tags", "to_json(struct(id, region, amount)) as body"
    )
