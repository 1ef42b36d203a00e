"""Schemas of bodies: read from a file or a registry on the driver, and sent to executors as text.

A registry is asked once, when a read is planned, by the calls of Confluent's: an address ends in
``/subjects/NAME/versions/N``, or in ``/subjects/NAME`` for the latest version.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from contrail.errors import OptionInvalid
from contrail.pipeline.body_settings import BodySettings

_TIMEOUT_S = 10
_SUBJECT = re.compile(r"/subjects/[^/]+/?$")
_REGISTRY_TYPES = {"json": "JSON", "avro": "AVRO", "protobuf": "PROTOBUF"}


def schema_content(settings: BodySettings) -> bytes:
    """The schema as its file or its registry has it.

    Raises:
        OptionInvalid: it cannot be read, or is of another format.
    """
    if settings.schema.startswith(("http://", "https://")):
        return _of_registry(settings)
    try:
        return Path(settings.schema.removeprefix("file://")).read_bytes()
    except OSError as error:
        raise OptionInvalid(
            f"bodySchema={settings.schema!r}: the driver cannot read it ({error.strerror}): name "
            "a file of the driver, or an address of a registry"
        ) from error


def _of_registry(settings: BodySettings) -> bytes:
    address = settings.schema.rstrip("/")
    if _SUBJECT.search(address):
        address += "/versions/latest"
    try:
        with urlopen(
            Request(address, headers={"Accept": "application/json"}), timeout=_TIMEOUT_S
        ) as answer:
            said = json.loads(answer.read())
    except (URLError, OSError, ValueError) as error:
        raise OptionInvalid(
            f"bodySchema={settings.schema!r}: the registry does not give a schema: {error}"
        ) from error
    if not isinstance(said, dict) or not isinstance(said.get("schema"), str):
        raise OptionInvalid(
            f"bodySchema={settings.schema!r}: the answer has no schema: end the address in "
            "/subjects/NAME or /subjects/NAME/versions/N"
        )
    kind = str(said.get("schemaType", "AVRO")).upper()
    if kind != _REGISTRY_TYPES[settings.format]:
        raise OptionInvalid(
            f"bodySchema={settings.schema!r}: it is {kind}, not bodyFormat={settings.format}"
        )
    return str(said["schema"]).encode()
