"""Source and sink sign: they read and write what their user may, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from contrail import Admin, Credentials, Message, Producer
from contrail.testing import LocalCluster
from tests.e2e.access_setup import ACCESS, ADMIN, Signer

SPARK = Credentials("spark", "the-password-of-spark")
FORMAT = "rocketmq"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(properties=ACCESS) as cluster:
        with Signer(cluster.brokers[0], ADMIN) as admin:
            admin.make_user(SPARK)
            admin.grant("spark", ("Topic:from", "Sub,Get"), ("Topic:to", "Pub,Get"))
            admin.grant("spark", ("Group:*", "Sub,Get"))
        with Admin(cluster.namesrv, credentials=ADMIN) as admin:
            for topic in ("from", "to", "secret"):
                admin.create_topic(topic, queues=2)
        with Producer("p", cluster.namesrv, credentials=ADMIN) as producer:
            for topic in ("from", "secret"):
                producer.send_many([Message(topic, b"x%d" % number) for number in range(20)])
        yield cluster


def options(cluster: LocalCluster, **more: str) -> dict[str, str]:
    signs = {"accessKey": SPARK.access_key, "secretKey": SPARK.secret_key}
    return {"namesrvAddr": cluster.namesrv, **signs, **more}


@pytest.mark.proves("access.signing.spark")
def test_source_and_sink_sign_for_a_user_and_do_no_more_than_it_may(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    read = spark.read.format(FORMAT).options(**options(cluster, subscribe="from")).load()
    assert read.count() == 20
    read.select("body").write.format(FORMAT).mode("append").options(
        **options(cluster, topic="to")
    ).save()
    app = cluster.brokers[0].app
    assert app is not None
    assert sum(app.store.queue_offset_max(b"to", queue) for queue in range(2)) == 20
    for wrong in (
        options(cluster, subscribe="secret"),
        options(cluster, subscribe="from", secretKey="guessed"),
    ):
        with pytest.raises(Exception, match=r"(?s)NO_PERMISSION|no right|signature"):
            spark.read.format(FORMAT).options(**wrong).load().count()
