"""Commands of Apache's ``mqadmin`` that are not part of Contrail, and why."""

from __future__ import annotations

_CONTROLLER = "Contrail has no controller; `contrail replication status` shows failover groups"
_REPLICATION = "Contrail does not replicate with this protocol"
_AUTH = "Apache's own `mqadmin` manages the users and rights of Contrail's brokers"
_CONTAINER = "Contrail has no broker container: start brokers with `contrail broker`"
_COLD_DATA = "Contrail does not hold back reads of old messages"
_STATIC = "Contrail has no static topics"
_ROCKSDB = "Contrail keeps nothing in RocksDB"
_LITE = "Contrail has no lite topics"

OUT_OF_SCOPE = {
    "addBroker": _CONTAINER,
    "removeBroker": _CONTAINER,
    "resetMasterFlushOffset": _REPLICATION,
    "haStatus": _REPLICATION,
    "getSyncStateSet": _CONTROLLER,
    "getBrokerEpoch": _CONTROLLER,
    "getControllerMetaData": _CONTROLLER,
    "getControllerConfig": _CONTROLLER,
    "updateControllerConfig": _CONTROLLER,
    "electMaster": _CONTROLLER,
    "cleanBrokerMetadata": _CONTROLLER,
    "createUser": _AUTH,
    "updateUser": _AUTH,
    "deleteUser": _AUTH,
    "getUser": _AUTH,
    "listUser": _AUTH,
    "copyUser": _AUTH,
    "createAcl": _AUTH,
    "updateAcl": _AUTH,
    "deleteAcl": _AUTH,
    "getAcl": _AUTH,
    "listAcl": _AUTH,
    "copyAcl": _AUTH,
    "getColdDataFlowCtrInfo": _COLD_DATA,
    "updateColdDataFlowCtrGroupConfig": _COLD_DATA,
    "removeColdDataFlowCtrGroupConfig": _COLD_DATA,
    "setCommitLogReadAheadMode": _COLD_DATA,
    "updateStaticTopic": _STATIC,
    "remappingStaticTopic": _STATIC,
    "exportMetadataInRocksDB": _ROCKSDB,
    "rocksDBConfigToJson": _ROCKSDB,
    "checkRocksdbCqWriteProgress": _ROCKSDB,
    "switchTimerEngine": _ROCKSDB,
    "getBrokerLiteInfo": _LITE,
    "getParentTopicInfo": _LITE,
    "getLiteTopicInfo": _LITE,
    "getLiteClientInfo": _LITE,
    "getLiteGroupInfo": _LITE,
    "triggerLiteDispatch": _LITE,
    "dumpCompactionLog": "Contrail keeps no compaction logs; see `contrail store dump`",
    "exportPopRecord": "Contrail keeps no records of pops in files",
    "startMonitoring": "see `contrail check` for monitors, and `contrail doctor`",
}
