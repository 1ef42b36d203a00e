"""Jobs on a cluster that is reached over TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from contrail import Admin, Message, Producer
from contrail.errors import OptionInvalid
from contrail.pipeline.jobs.dedupe import DedupeSettings, dedupe
from contrail.pipeline.jobs.report import ReportSettings, report
from contrail.pipeline.jobs.sql import SqlSettings, sql
from tests.e2e.test_client_tls import certificate as certificate
from tests.e2e.test_client_tls import namesrv as namesrv
from tests.e2e.test_client_tls import pytestmark as pytestmark


def test_jobs_reach_a_cluster_over_tls(
    spark: SparkSession, namesrv: str, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    options = {"tls.enable": "true", "tls.client.trustCertPath": str(certificate[0])}
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    with Admin(namesrv, tls=trusting) as admin:
        admin.create_topic("secret", queues=1)
        admin.create_topic("once", queues=1)
    with Producer("secrets", namesrv, tls=trusting) as producer:
        producer.send_many([Message("secret", b"x", keys=[f"k{n % 3}"]) for n in range(9)])
    wish = DedupeSettings(
        namesrv=namesrv,
        topic="secret",
        to_topic="once",
        checkpoint=str(tmp_path / "checkpoint"),
        options=options,
    )
    assert dedupe(wish, spark=spark).facts["sent"] == 3
    query = "select count(*) as n from topic.once"
    found = sql(SqlSettings(query=query, namesrv=namesrv, options=options), spark=spark)
    assert found.table == [{"n": 3}]
    pages = ReportSettings(out=str(tmp_path / "out"), namesrv=namesrv, options=options)
    assert report(pages, spark=spark).outcome == "done"


def test_an_option_that_is_none_of_the_cluster_is_refused(tmp_path: Path) -> None:
    wish = DedupeSettings(
        namesrv="127.0.0.1:1",
        topic="a",
        to_topic="b",
        checkpoint=str(tmp_path),
        options={"tls.enabled": "true"},
    )
    with pytest.raises(OptionInvalid, match=r"'tls\.enabled'.*tls\.enable"):
        dedupe(wish)
