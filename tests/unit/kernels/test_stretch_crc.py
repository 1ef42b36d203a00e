"""The checksum of a body is zlib's, however long the body is: compiled kernels take their own."""

from __future__ import annotations

import zlib
from random import Random

from contrail.kernels import send_rows, stretch_crc
from contrail.kernels.batch_rows import batch_rows
from contrail.kernels.send_records import are_admitted, build_sends
from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.message import MessageDraft
from contrail.model.record import CRC_MASK
from tests.unit.kernels.material import IPV4, STORE_TIMESTAMP_MS

# Every way to end behind the last 16, the last 64 and the last 256 bytes, and some long ones.
LENGTHS = [*range(1, 800), 1023, 1024, 1025, 4096, 65_537]


def test_bodies_of_every_length_are_stored_with_the_checksum_of_zlib() -> None:
    random = Random(1)
    bodies = [random.randbytes(length) for length in LENGTHS]
    draft = MessageDraft(
        topic=b"orders",
        queue_id=0,
        body=encode_batch([BatchUnit(body, b"") for body in bodies]),
        born_host=IPV4,
    )
    chunk = batch_rows(tuple(draft), 1 << 30, 4096)
    assert chunk is not None and are_admitted(chunk, {b"orders": 1}, {}, 0, 1 << 30)
    built = build_sends([chunk], {(b"orders", 0): 0}, [], 0, 1 << 30, STORE_TIMESTAMP_MS, IPV4)
    assert built is not None
    records = built[0]
    starts = chunk[2][send_rows.PHYSICAL_OFFSET :: send_rows.ROW_NUMBERS]
    stored = [int.from_bytes(records[start + 8 : start + 12], "big") for start in starts]
    assert stored == [zlib.crc32(body) & CRC_MASK for body in bodies]


def test_a_stretch_is_checked_without_what_stands_around_it() -> None:
    assert stretch_crc.crc_of(zlib.crc32, b"..123456789..", 2, 11) == 0xCBF43926
