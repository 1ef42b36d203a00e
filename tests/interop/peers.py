"""Real peers: Apache RocketMQ's published artifacts, resolved once, cached, run on loopback.

``versions.toml`` pins them. Class paths come from Maven, our Java programs are compiled against
them once per version and content, and everything fetched or built stays in the cache folder
(``CONTRAIL_PEER_CACHE``, else ``~/.cache/contrail/peers``).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

HERE = Path(__file__).parent
INSTALL_COMMAND = "apt-get install --no-install-recommends openjdk-17-jdk-headless maven"
HEAP = "-Xmx1g"

_RESOLVE_TIMEOUT_S = 900
_COMPILE_TIMEOUT_S = 120
# Apache 4.9 and 5.x unmap their files through these JDK internals.
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:MaxDirectMemorySize=512m",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)


class PeerFailed(AssertionError):
    """A peer's process ended badly; the message holds the end of its output."""


@dataclass(frozen=True, slots=True)
class JavaPeer:
    """One pinned peer with its class path, able to run our Java programs."""

    name: str
    version: str
    class_path: str
    cache: Path

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    def run(self, program: str, arguments: list[str], *, home: Path, timeout_s: float) -> str:
        """Run one of our programs against the peer and return its output."""
        home.mkdir(parents=True, exist_ok=True)
        command = self.command(program, arguments, home=home, ours=True)
        return _call(command, cwd=home, environment=own_environment(home), timeout_s=timeout_s)

    def command(
        self,
        main: str,
        arguments: list[str],
        *,
        home: Path,
        ours: bool = False,
        heap: str = HEAP,
    ) -> list[str]:
        """The command line of a main class: one of the peer's, or one of our programs."""
        class_path = self.class_path
        if ours:
            class_path = f"{self._compiled(main)}{os.pathsep}{class_path}"
        return [
            "java",
            heap,
            *_JVM_OPTIONS,
            f"-Duser.home={home}",
            f"-Drmq.logback.configurationFile={HERE / 'java' / 'quiet_logback.xml'}",
            "-Drocketmq.client.logUseSlf4j=true",
            "-Djava.net.preferIPv6Addresses=false",
            "-cp",
            class_path,
            main,
            *arguments,
        ]

    def _compiled(self, program: str) -> Path:
        """The folder of compiled classes; made once per source text and class path."""
        source = HERE / "java" / f"{program}.java"
        mark = _digest(source.read_bytes(), self.class_path.encode())
        classes = self.cache / "classes" / f"{program}-{self.version}-{mark}"
        if not (classes / f"{program}.class").exists():
            building = classes.with_name(f"{classes.name}.{os.getpid()}")
            building.mkdir(parents=True, exist_ok=True)
            command = ["javac", "-nowarn", "-encoding", "UTF-8", "-d", str(building)]
            command += ["-cp", self.class_path, str(source)]
            environment = own_environment(self.cache)
            _call(command, cwd=building, environment=environment, timeout_s=_COMPILE_TIMEOUT_S)
            _publish(building, classes)
        return classes


def java_peer(name: str) -> JavaPeer:
    """The pinned peer of that name, ready to run; skips the test when it cannot be had."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            unavailable(f"{tool} is not installed")
    pins = tomllib.loads((HERE / "versions.toml").read_text(encoding="utf-8"))
    pin = pins[name]
    cache = _cache_folder()
    whole = [_coordinate(artifact, pin["version"]) for artifact in pin["artifacts"]]
    alone = [_coordinate(artifact, pin["version"]) for artifact in pin.get("alone", [])]
    try:
        class_path = _class_path(_pom(whole, alone), pins["maven"]["dependency-plugin"], cache)
    except PeerFailed as problem:
        unavailable(f"Maven could not resolve {', '.join(whole + alone)}:\n{problem}")
    return JavaPeer(name, pin["version"], class_path, cache)


def unavailable(reason: str, install: str = INSTALL_COMMAND) -> NoReturn:
    """Skip the test and say why, or fail it where every peer is required."""
    message = f"peer not available: {reason}\nOn Debian: {install}"
    if os.environ.get("CONTRAIL_REQUIRE_PEERS") == "1":
        pytest.fail(f"{message}\n(CONTRAIL_REQUIRE_PEERS=1 makes this a failure)")
    print(message)
    pytest.skip(message)


def _cache_folder() -> Path:
    named = os.environ.get("CONTRAIL_PEER_CACHE")
    folder = Path(named) if named else Path.home() / ".cache" / "contrail" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def _coordinate(artifact: str, version: str) -> str:
    return artifact if artifact.count(":") == 2 else f"{artifact}:{version}"


def _class_path(pom: str, plugin_version: str, cache: Path) -> str:
    """Ask Maven once; later runs read the answer as long as every jar is still there."""
    project = cache / "class-paths" / _digest(pom.encode())
    answer = project / "class-path.txt"
    if answer.exists() and _all_present(answer.read_text(encoding="utf-8")):
        return answer.read_text(encoding="utf-8").strip()
    project.mkdir(parents=True, exist_ok=True)
    (project / "pom.xml").write_text(pom, encoding="utf-8")
    goal = f"org.apache.maven.plugins:maven-dependency-plugin:{plugin_version}:build-classpath"
    fresh = project / f"class-path.{os.getpid()}.txt"
    command = ["mvn", "--batch-mode", "--quiet", f"-Dmaven.repo.local={cache / 'repository'}"]
    command += [goal, "-DincludeScope=runtime", f"-Dmdep.outputFile={fresh}"]
    # Maven keeps the caller's environment: a site's mirrors and proxies are set there.
    _call(command, cwd=project, environment=dict(os.environ), timeout_s=_RESOLVE_TIMEOUT_S)
    fresh.replace(answer)
    return answer.read_text(encoding="utf-8").strip()


def _all_present(class_path: str) -> bool:
    return all(Path(jar).exists() for jar in class_path.strip().split(os.pathsep))


def _pom(whole: list[str], alone: list[str]) -> str:
    nothing_else = (
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        "</exclusions>"
    )
    dependencies = "".join(_dependency(coordinate) for coordinate in whole)
    dependencies += "".join(_dependency(coordinate, nothing_else) for coordinate in alone)
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>contrail</groupId><artifactId>peer</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


def _dependency(coordinate: str, exclusions: str = "") -> str:
    group, artifact, version = coordinate.split(":")
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{exclusions}</dependency>"
    )


def _publish(building: Path, finished: Path) -> None:
    """Move a finished folder into place; another process may have been first with the same."""
    try:
        building.rename(finished)
    except OSError:
        shutil.rmtree(building)
        if not finished.exists():
            raise


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def own_environment(home: Path) -> dict[str, str]:
    """An environment with the tools' paths only: peers write logs under HOME."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    return kept | {"HOME": str(home), "LC_ALL": "C.UTF-8"}


def _call(command: list[str], *, cwd: Path, environment: dict[str, str], timeout_s: float) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        printed = (late.stdout or b"").decode(errors="replace")[-4000:]
        raise PeerFailed(f"{command[0]} ran longer than {timeout_s} s\n{printed}") from late
    printed = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise PeerFailed(f"{command[0]} ended with {done.returncode}\n{printed[-4000:]}")
    return printed
