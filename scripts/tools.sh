#!/bin/sh
# Say which tool of this machine is missing and the command that installs it.
#
#   scripts/tools.sh python PYTHON   a Python of at least 3.11 that can make a venv
#   scripts/tools.sh java            a JDK and Maven, for the tests against Apache RocketMQ
#   scripts/tools.sh spark           a Java of at least 17, for Spark
#   scripts/tools.sh browser         Chromium, for the tests of the console's page
#
# Chromium, a JDK and Maven are optional unless CONTRAIL_REQUIRE_PEERS=1. The C compiler is checked by setup.py, which
# tries it.
set -eu

fail() {
    printf 'contrail: %s\n  install it with: %s\n' "$1" "$2" >&2
    exit 1
}

check_python() {
    python=$1
    command -v "$python" >/dev/null 2>&1 ||
        fail "there is no '$python' here" "apt-get install python3 python3-venv"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "'$python' is $("$python" -V 2>&1), and Contrail needs 3.11 or newer (make PYTHON=python3.12 picks another)" \
            "apt-get install python3.12 python3.12-venv"
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        fail "'$python' cannot make virtual environments" "apt-get install python3-venv"
}

check_java() {
    for tool in javac mvn; do
        command -v "$tool" >/dev/null 2>&1 && continue
        hint="apt-get install default-jdk-headless maven"
        [ "${CONTRAIL_REQUIRE_PEERS:-}" = 1 ] && fail "there is no '$tool' here" "$hint"
        printf 'contrail: no %s here: tests against Apache RocketMQ will be skipped\n  %s\n' "$tool" "$hint" >&2
    done
}

check_spark() {
    hint="apt-get install openjdk-17-jre-headless"
    java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
    command -v "$java" >/dev/null 2>&1 || fail "there is no '$java' here, and Spark runs on it" "$hint"
    version=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${version:-0}" -ge 17 ] ||
        fail "'$java' is version ${version:-unknown}, and Spark needs 17 or newer" "$hint"
}

check_browser() {
    for tool in chromium chromium-browser google-chrome; do
        command -v "$tool" >/dev/null 2>&1 && return
    done
    hint="apt-get install chromium"
    [ "${CONTRAIL_REQUIRE_PEERS:-}" = 1 ] && fail "there is no Chromium here" "$hint"
    printf 'contrail: no Chromium here: tests of the console page will be skipped\n  %s\n' "$hint" >&2
}

case "${1:-}" in
    python) check_python "$2" ;;
    java) check_java ;;
    spark) check_spark ;;
    browser) check_browser ;;
    *) sed -n '2,11p' "$0" >&2; exit 2 ;;
esac
