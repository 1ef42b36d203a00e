"""The Spark session of a job: embedded by default, or at a given master."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from pyspark import SparkContext
from pyspark.sql import SparkSession

from contrail.errors import OptionInvalid, PipelineError

EMBEDDED_MASTER = "local[*]"
JAVA_VERSION_MIN = 17
# spark-submit or the environment chooses the master: then this module does not.
_DECIDED_ELSEWHERE = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")
_CONNECT = "sc://"
_EMBEDDED = "local"
_HOST = r"([^/,:\[\]\s]+|\[[0-9a-fA-F:.]+\])"
_MASTERS = re.compile(
    r"local|local\[(\*|0*[1-9]\d*)(\s*,\s*\d+)?\]|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    rf"|spark://{_HOST}:\d+(,{_HOST}:\d+)*|yarn|k8s://\S+|sc://{_HOST}(:\d+)?(/\S*)?"
)
_PYTHON_VARIABLE = "PYSPARK_PYTHON"
_PYTHON = "python3"
# Comes behind the folder of a packed environment: the usual PATH, which the setting replaces.
_EXECUTOR_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_SESSION_DEFAULTS = {"spark.sql.session.timeZone": "UTC"}
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# An embedded session needs no more shuffle tasks than cores, and listens on loopback only.
_EMBEDDED_DEFAULTS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}


def open_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session that knows ``format("rocketmq")``; ``conf`` overrides the job's own settings.

    ``master`` is Spark's setting, or a Spark Connect address (``sc://host``). Without it the
    session is embedded in this process, unless spark-submit or ``SPARK_REMOTE`` has chosen.
    Executors of a master find their Python in the environment of ``spark.archives``, if ``conf``
    names one, else by ``PYSPARK_PYTHON``, else on their PATH.

    Raises:
        OptionInvalid: ``master`` is invalid.
        PipelineError: there is no Java for an embedded Spark, or Spark does not start.
    """
    check_master(master)
    chosen = master if master or _is_decided_elsewhere() else EMBEDDED_MASTER
    settings = dict(conf or {})
    if chosen is not None and not chosen.startswith(_CONNECT):
        require_java()
    if chosen is not None and chosen.startswith(_EMBEDDED):
        use_this_interpreter()
        # Otherwise Spark looks for an address that other machines reach, and logs warnings.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    elif chosen is not None and not chosen.startswith(_CONNECT):
        settings = {**name_interpreters(settings), **settings}
    spark = _started(name, chosen, settings)
    _register_source(spark)
    return spark


def check_master(master: str | None) -> None:
    """Refuse an invalid master before Spark is started, also in dry runs.

    Raises:
        OptionInvalid: the text is no address of a master.
    """
    if master and not _MASTERS.fullmatch(master):
        raise OptionInvalid(
            f"master {master!r} is none: give local[N], spark://HOST:PORT, yarn, k8s://ADDRESS, or "
            "sc://HOST for Spark Connect"
        )


class SessionToOpen:
    """A session that is opened when a job needs it, after the checks that need no Spark.

    The code that made it stops it.
    """

    def __init__(
        self, name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
    ) -> None:
        """Raises ``OptionInvalid`` for an invalid master."""
        check_master(master)
        self._name = name
        self._master = master
        self._conf = conf
        self._opened: SparkSession | None = None
        self._is_own = False

    def opened(self) -> SparkSession:
        """The session, the same each time."""
        if self._opened is None:
            # An existing session of this process is used, and not stopped here.
            self._is_own = SparkContext._active_spark_context is None
            self._opened = open_session(self._name, master=self._master, conf=self._conf)
        return self._opened

    def stop(self) -> None:
        """Stop the session if it was opened here."""
        if self._opened is not None and self._is_own:
            self._opened.stop()
        self._opened = None


Spark: TypeAlias = SparkSession | SessionToOpen


@contextmanager
def job_session(spark: Spark | None, name: str) -> Iterator[SparkSession]:
    """The given or existing session, left open; else one that ends with the job."""
    if isinstance(spark, SessionToOpen):
        yield spark.opened()
        return
    spark = spark or SparkSession.getActiveSession()
    if spark is not None:
        _register_source(spark)
        yield spark
        return
    own = open_session(name)
    try:
        yield own
    finally:
        own.stop()


def session_settings(master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """All settings of a session at ``master``: the job's own, then the given ones."""
    if master is not None and master.startswith(_CONNECT):
        # A server of Spark Connect has its own; a client may only set those of its session.
        return {**_SESSION_DEFAULTS, **conf}
    embedded = master is not None and master.startswith(_EMBEDDED)
    return {**_SESSION_DEFAULTS, **_DEFAULTS, **(_EMBEDDED_DEFAULTS if embedded else {}), **conf}


def name_interpreters(conf: Mapping[str, str]) -> dict[str, str]:
    """Make driver and executors of a cluster each use their own Python; returns the settings.

    Spark has one name of a Python for both sides. A bare name means this interpreter on the
    driver, whose folder is put first on the PATH of this process; on the executors it means the
    first one on their PATH, on which a packed environment comes first. If ``PYSPARK_PYTHON`` is
    set, that name is used on both sides.
    """
    if os.environ.get(_PYTHON_VARIABLE):
        return {}
    here = Path(sys.executable)
    usual = here.with_name(_PYTHON)
    is_usual = usual.exists() and usual.samefile(here)
    os.environ[_PYTHON_VARIABLE] = _PYTHON if is_usual else here.name
    folders = [f"./{name}/bin" for name in _archive_names(conf.get("spark.archives", ""))]
    first = [*folders, str(here.parent)]
    os.environ["PATH"] = os.pathsep.join([*first, os.environ.get("PATH", os.defpath)])
    # Spark passes this PATH to the driver's Python workers too, and a Python that is started by a
    # bare name finds its own folder by its PATH: both sides must agree up to the driver's folder.
    return {"spark.executorEnv.PATH": ":".join([*first, *_EXECUTOR_PATH])} if folders else {}


def _archive_names(archives: str) -> list[str]:
    """The folders in which executors unpack archives that are given as ``FILE#NAME``."""
    return [name for one in archives.split(",") if (name := one.partition("#")[2].strip())]


def use_this_interpreter() -> None:
    """Make Spark's Python workers use this interpreter: Spark's default is ``python3`` of PATH."""
    os.environ.setdefault(_PYTHON_VARIABLE, sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def require_java() -> None:
    """Refuse with one line, where Spark itself would print a page.

    Raises:
        PipelineError: there is no Java, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    found = java_version(program) if program else None
    # An unknown version is tried: Spark itself refuses a Java that is too old.
    if found is None or 0 < found < JAVA_VERSION_MIN:
        is_there = "no Java was found" if found is None else f"{program} is Java {found}"
        raise PipelineError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {is_there}: install it with "
            f"`sudo apt-get install openjdk-{JAVA_VERSION_MIN}-jre-headless`, or set JAVA_HOME"
        )


def java_version(program: str) -> int | None:
    """The feature release of a Java, by the ``release`` file of its folder.

    0 if that file is missing or has no version: some Javas have none. None if there is no such
    program.
    """
    path = Path(program)
    if not path.exists():
        return None
    try:
        return parsed_java_version((path.resolve().parent.parent / "release").read_text("utf-8"))
    except OSError:
        return 0


def parsed_java_version(text: str) -> int:
    """``17`` of ``JAVA_VERSION="17.0.15"``; 8 of ``1.8``; 0 without a version."""
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(match[1]) if match else 0


def _is_decided_elsewhere() -> bool:
    return any(os.environ.get(name) for name in _DECIDED_ELSEWHERE)


def _started(name: str, master: str | None, conf: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.remote(master) if master.startswith(_CONNECT) else builder.master(master)
    for key, value in session_settings(master, conf).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        # Py4J, gRPC and Spark have their own error families; to a user all mean the same.
        first_line = str(error).strip().partition("\n")[0]
        raise PipelineError(
            f"Spark does not start at {master or 'the place that its environment names'}: "
            f"{first_line}"
        ) from error


def _register_source(spark: SparkSession) -> None:
    from pyspark_rocketmq import register

    register(spark)
