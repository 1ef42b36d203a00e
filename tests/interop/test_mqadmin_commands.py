"""Every command that Apache's ``mqadmin`` has is run by a test here, or is out of scope by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.interop.mqadmin import MqAdmin

HERE = Path(__file__).parent
MODULES = ("test_mqadmin", "test_mqadmin_settings", "test_mqadmin_traffic")
RUNNERS = {"run": 0, "rows": 0, "run_until": 1}

# Commands of parts that are not built, by part: no test can run them.
OUT_OF_SCOPE = {
    "access control": {
        "createUser", "updateUser", "deleteUser", "getUser", "listUser", "copyUser",
        "createAcl", "updateAcl", "deleteAcl", "getAcl", "listAcl", "copyAcl",
    },
    "controller": {
        "getSyncStateSet", "getControllerMetaData", "getControllerConfig",
        "updateControllerConfig", "electMaster", "cleanBrokerMetadata",
    },
    "replication": {"haStatus", "getBrokerEpoch", "resetMasterFlushOffset"},
    "broker container": {"addBroker", "removeBroker"},
    "static topics": {"updateStaticTopic", "remappingStaticTopic"},
    "cold data": {
        "getColdDataFlowCtrInfo", "updateColdDataFlowCtrGroupConfig",
        "removeColdDataFlowCtrGroupConfig", "setCommitLogReadAheadMode",
    },
    "RocksDB": {
        "exportMetadataInRocksDB", "rocksDBConfigToJson", "checkRocksdbCqWriteProgress",
        "switchTimerEngine",
    },
    "compaction topics": {"dumpCompactionLog"},
    "pop": {"exportPopRecord"},
    "lite topics": {
        "getBrokerLiteInfo", "getParentTopicInfo", "getLiteTopicInfo", "getLiteClientInfo",
        "getLiteGroupInfo", "triggerLiteDispatch",
    },
}  # fmt: skip


def commands_in_tests() -> set[str]:
    """The commands that test functions of these modules run."""
    found: set[str] = set()
    for module in MODULES:
        tree = ast.parse((HERE / f"{module}.py").read_text(encoding="utf-8"))
        tests = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        ]
        found |= {name for test in tests for name in _commands_of(test)}
    return found


def _commands_of(test: ast.FunctionDef) -> set[str]:
    """The names in calls like ``mqadmin.run("topicList")``, and in loops over such names."""
    calls = [node for node in ast.walk(test) if isinstance(node, ast.Call)]
    names = {name for call in calls if (name := _named_in(call)) is not None}
    loops = [node for node in ast.walk(test) if isinstance(node, ast.For)]
    for loop in loops:
        if isinstance(loop.target, ast.Name) and loop.target.id == "command":
            names |= set(ast.literal_eval(loop.iter))
    return names


def _named_in(call: ast.Call) -> str | None:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in RUNNERS:
        return None
    place = RUNNERS[call.func.attr]
    if len(call.args) <= place:
        return None
    name = call.args[place]
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


@pytest.mark.proves("house.folded.mqadmin-facts", "cli.administration.apaches-mqadmin")
def test_every_registered_command_is_run_by_a_test_or_out_of_scope(tmp_path: Path) -> None:
    with MqAdmin("127.0.0.1:1", tmp_path) as mqadmin:
        registered = mqadmin.names()
    out_of_scope = set[str]().union(*OUT_OF_SCOPE.values())
    assert sorted(out_of_scope - registered) == []
    assert sorted(registered - out_of_scope - commands_in_tests()) == []


def test_no_command_is_out_of_scope_twice() -> None:
    assert sum(map(len, OUT_OF_SCOPE.values())) == len(set().union(*OUT_OF_SCOPE.values()))
