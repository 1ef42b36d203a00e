"""``contrail store`` as people run it: a process of its own on a real folder."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.store.log import MessageStore
from tests.cli.running import check_json
from tests.fault.store_setup import append_numbers, small_config

BEGIN_MS = 1_760_000_000_000
SLOTS = ["--index-slots", "40"]


@pytest.fixture(scope="module")
def sound_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cli") / "store"
    clock = ManualClock(BEGIN_MS)
    with MessageStore.open(small_config(root), clock=clock) as store:
        for number in range(0, 100, 10):
            append_numbers(store, number, number + 10)
            clock.advance(ms=1000)
        append_numbers(store, 100, 105, topic="bills", queue_id=1)
        append_numbers(store, 105, 106, topic="SCHEDULE_TOPIC_XXXX", DELAY="3")
    return root


@pytest.fixture
def root(sound_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound_folder, tmp_path / "store"))


def contrail(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "contrail.cli", "store", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def dumped(*arguments: str | Path) -> list[dict[str, object]]:
    done = contrail("dump", *arguments, "--json", *SLOTS)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_inspect_shows_queues_times_and_how_the_store_was_left(root: Path) -> None:
    done = contrail("inspect", root, *SLOTS)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["│", "orders", "│", "0", "│", "0", "│", "100", "│"] in [line[:9] for line in lines]
    assert "closed in order" in done.stdout
    assert "Contrail" in done.stdout
    assert done.stderr == ""


@pytest.mark.proves("store.reader.commands")
def test_inspect_as_json_holds_the_same(root: Path) -> None:
    told = json.loads(contrail("inspect", root, "--json", *SLOTS).stdout)
    assert told["message_count"] == 106
    assert told["closed_cleanly"] is True
    assert told["first_store_timestamp_ms"] == BEGIN_MS
    assert told["segment_bytes"] == 8192
    assert told["topics"]["bills"][0]["queue_offset_max"] == 5
    assert told["damage_hints"] == []
    check_json("store-inspect", told)


def test_inspect_works_beside_a_running_store(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 20)
        told = json.loads(contrail("inspect", tmp_path, "--json", *SLOTS).stdout)
        assert told["message_count"] == 20
        assert told["closed_cleanly"] is False
        assert told["in_use"] is not False
        append_numbers(store, 20, 21)


def test_inspect_hints_at_damage(root: Path) -> None:
    os.truncate(root / "consumequeue/orders/0" / f"{0:020d}", 500)
    done = contrail("inspect", root, *SLOTS)
    assert done.returncode == 1
    assert "odd length" in done.stdout


@pytest.mark.parametrize("which", [1, -1])
def test_inspect_hints_at_a_missing_segment(root: Path, which: int) -> None:
    gone = sorted((root / "commitlog").iterdir())[which]
    gone.unlink()
    done = contrail("inspect", root, *SLOTS)
    assert done.returncode == 1
    assert f"damage: bytes {int(gone.name)} to" in done.stdout
    assert done.stdout.count("no segment") == 1


def test_inspect_does_not_guess_the_make_of_a_store_without_a_checkpoint(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path / "live")) as store:
        append_numbers(store, 0, 3)
        copy = shutil.copytree(tmp_path / "live", tmp_path / "copy")
    for path in [*copy.glob("contrail.*"), *copy.glob("checkpoint*")]:
        path.unlink()
    told = json.loads(contrail("inspect", copy, "--json", *SLOTS).stdout)
    assert told["written_by"] == "not known yet"
    (copy / "checkpoint").write_bytes(bytes(4096))
    told = json.loads(contrail("inspect", copy, "--json", *SLOTS).stdout)
    assert told["written_by"] == "RocketMQ"


def test_verify_of_a_sound_store_says_so(root: Path) -> None:
    done = contrail("verify", root, *SLOTS)
    assert (done.returncode, done.stderr) == (0, "")
    assert "106 records" in done.stdout
    assert "The store is sound." in done.stdout


@pytest.mark.proves("store.reader.commands")
def test_verify_finds_damage_and_repair_rebuilds_it(root: Path) -> None:
    path = root / "consumequeue/orders/0" / f"{0:020d}"
    sound = path.read_bytes()
    flip(path, 47)
    done = contrail("verify", root, *SLOTS)
    assert done.returncode == 1
    assert "queue 0 of orders: 0 rows missing, 1 wrong" in done.stdout
    assert "--repair" in done.stdout
    done = contrail("verify", root, "--repair", *SLOTS)
    assert done.returncode == 0, done.stdout
    assert "(rebuilt)" in done.stdout
    assert path.read_bytes() == sound


def test_verify_names_the_message_that_is_damaged(root: Path) -> None:
    flip(root / "commitlog" / f"{0:020d}", 100)
    done = contrail("verify", root, "--json", *SLOTS)
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert (told["sound"], told["log"][0]["topic"], told["log"][0]["queue_offset"]) == (
        False,
        "orders",
        0,
    )
    check_json("store-verify", told)


def test_repair_of_a_running_store_is_refused_in_one_line(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 3)
        done = contrail("verify", tmp_path, "--repair", *SLOTS)
    assert done.returncode == 2
    assert done.stderr.startswith(f"contrail: {tmp_path} is open in another process")
    assert done.stderr.count("\n") == 1


def test_dump_prints_a_line_a_message(root: Path) -> None:
    done = contrail("dump", root, "--limit", "3")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert "orders/0@0 TAGS=t0 KEYS=k0 UNIQ_KEY=ID000000 00000000" in lines[0]


@pytest.mark.proves("store.reader.commands")
def test_dump_as_json_holds_the_whole_message(root: Path) -> None:
    (message,) = dumped(root, "--topic", "bills", "--queue", "1", "--from-offset", "4")
    check_json("store-dump", message)
    assert message["queueOffset"] == 4
    assert message["properties"] == {"UNIQ_KEY": "ID000104", "KEYS": "k4", "TAGS": "t2"}
    assert base64.b64decode(str(message["bodyBase64"])).startswith(b"00000104")


def test_dump_finds_a_key_and_a_time(root: Path) -> None:
    assert len(dumped(root, "--topic", "orders", "--key", "k7")) == 10
    chosen = dumped(root, "--begin", str(BEGIN_MS + 2000), "--end", str(BEGIN_MS + 3000))
    assert [message["queueOffset"] for message in chosen] == list(range(20, 40))


def test_dump_shows_the_brokers_own_messages_on_request(root: Path) -> None:
    assert len(dumped(root)) == 105
    assert len(dumped(root, "--internal")) == 106


def test_dump_into_a_closed_pipe_is_quiet(root: Path) -> None:
    command = f"{sys.executable} -m contrail.cli store dump {root} --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_dump_passes_over_damage_and_says_where_it_is(root: Path) -> None:
    flip(root / "commitlog" / f"{0:020d}", 100)
    done = contrail("dump", root, "--topic", "orders")
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 99
    assert done.stderr.startswith("contrail: bytes 0 to ")


@pytest.mark.proves("store.reader.wrong-input")
@pytest.mark.parametrize("command", ["inspect", "verify", "dump"])
@pytest.mark.parametrize("what", ["missing", "file", "empty"])
def test_a_folder_that_is_no_store_is_one_line_and_exit_code_two(
    tmp_path: Path, command: str, what: str
) -> None:
    path = tmp_path / what
    if what == "file":
        path.write_text("no folder")
    elif what == "empty":
        path.mkdir()
    done = contrail(command, path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"contrail: {path} ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.proves("store.reader.wrong-input")
@pytest.mark.parametrize("command", ["inspect", "verify", "dump"])
def test_a_wrong_segment_size_is_answered_with_the_right_one(root: Path, command: str) -> None:
    done = contrail(command, root, "--segment-bytes", "4096")
    assert done.returncode == 2
    assert "8192 bytes, not 4096" in done.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--queue", "0"], "--queue needs --topic"),
        (["--key", "k"], "--key needs --topic"),
        (["--begin", "yesterday"], "--begin 'yesterday'"),
        (["--begin=--5"], "--begin '--5'"),
        (["--limit", "-1"], "--limit must be 0 or more, not -1"),
        (["--topic", "orders", "--queue", "-1"], "--queue must be 0 or more, not -1"),
        (["--topic", "orders", "--from-offset", "-5"], "--from-offset must be 0 or more, not -5"),
        (["--segment-bytes", "0"], "--segment-bytes must be 1 or more, not 0"),
        (["--index-slots", "0"], "--index-slots must be 1 or more, not 0"),
        (["--index-slots", "-1"], "--index-slots must be 1 or more, not -1"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(
    root: Path, options: list[str], named: str
) -> None:
    done = contrail("dump", root, *options)
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["inspect", "verify", "recover"])
@pytest.mark.parametrize("option", ["--segment-bytes", "--index-slots"])
def test_sizes_below_one_are_refused_by_every_command(
    root: Path, command: str, option: str
) -> None:
    done = contrail(command, root, option, "-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"contrail: {option} must be 1 or more, not -1\n"


def test_delay_levels_that_cannot_be_read_are_one_line(root: Path) -> None:
    done = contrail("verify", root, "--delay-levels", "1x")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["inspect", "verify", "recover", "dump"])
@pytest.mark.parametrize("name", ["consumequeue", "index", "checkpoint"])
def test_a_file_for_a_folder_or_a_folder_for_a_file_is_one_line(
    root: Path, command: str, name: str
) -> None:
    path = root / name
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("no folder")
    else:
        path.unlink()
        path.mkdir()
    done = contrail(command, root)
    assert done.returncode == 2
    assert done.stderr.startswith(f"contrail: {path} ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
@pytest.mark.parametrize("command", ["inspect", "verify", "recover", "dump"])
def test_a_folder_without_permission_is_one_line(root: Path, command: str) -> None:
    root.chmod(0)
    try:
        done = contrail(command, root)
    finally:
        root.chmod(0o755)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_control_characters_of_a_message_do_not_reach_the_terminal(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 1, KEYS="\x1b[31mred")
    done = contrail("dump", tmp_path)
    assert "\x1b" not in done.stdout
    assert "\\x1b[31mred" in done.stdout


def test_recover_opens_a_store_once_and_reports_the_repairs(root: Path) -> None:
    (root / "abort").write_text("1")
    done = contrail("recover", root, *SLOTS)
    assert done.returncode == 0, done.stderr
    assert "not closed in order" in done.stdout
    assert not (root / "abort").exists()
    report = json.loads(contrail("recover", root, "--json", *SLOTS).stdout)
    assert report["was_clean"] is True and report["problems"] == []
    check_json("store-recover", report)


def test_recover_makes_the_queue_of_batches_that_a_kill_left_out(tmp_path: Path) -> None:
    config = small_config(tmp_path / "live")
    with MessageStore.open(config, batch_topics=frozenset({b"batches"})) as store:
        append_numbers(store, 0, 3)
        store.append_inner_batch(
            MessageDraft(b"batches", 0, b"x", encode_properties({"INNER_NUM": "4"}), sys_flag=0xC0)
        )
        killed = shutil.copytree(tmp_path / "live", tmp_path / "killed")
    shutil.rmtree(killed / "batchconsumequeue", ignore_errors=True)
    done = contrail("recover", killed, *SLOTS)
    assert done.returncode == 0, done.stderr
    assert (killed / "batchconsumequeue/batches/0").is_dir()
    assert not (killed / "consumequeue/batches").exists()
    assert contrail("verify", killed, *SLOTS).returncode == 0


def test_recover_refuses_damage_and_accepts_it_on_request(root: Path) -> None:
    segment = sorted((root / "commitlog").iterdir())[-1]
    flip(segment, len(segment.read_bytes().rstrip(b"\0")) - 100)
    refused = contrail("recover", root, *SLOTS)
    assert refused.returncode == 1
    assert "--accept-loss" in refused.stderr and "Traceback" not in refused.stderr
    accepted = contrail("recover", root, "--accept-loss", *SLOTS)
    assert accepted.returncode == 0, accepted.stderr
    assert "contrail.lost" in accepted.stdout
    assert contrail("verify", root, *SLOTS).returncode == 0


def _without_times(text: str) -> str:
    return re.sub(r"[\d,.]+ m?s\b", "", text)


@pytest.mark.proves("cli.small-rules.words-and-exit-codes")
@pytest.mark.parametrize("command", ["inspect", "verify", "recover", "dump"])
def test_the_folder_around_a_store_will_do(root: Path, command: str) -> None:
    inner, outer = contrail(command, root, *SLOTS), contrail(command, root.parent, *SLOTS)
    assert (outer.returncode, outer.stderr) == (inner.returncode, inner.stderr) == (0, "")
    # How long it took is not the same twice.
    assert _without_times(outer.stdout) == _without_times(inner.stdout)
    named = contrail(command, root.parent.parent, *SLOTS)
    assert named.returncode == 2 and str(root.parent.parent) in named.stderr


def test_a_folder_that_is_a_store_is_meant_though_another_is_inside(root: Path) -> None:
    shutil.copytree(root, root / "store")
    shutil.rmtree(root / "store" / "commitlog")
    assert contrail("inspect", root, *SLOTS).returncode == 0
