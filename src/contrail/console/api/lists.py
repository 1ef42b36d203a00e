"""The parts that all lists share: their query, and how their page is told."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

import msgspec

from contrail.console.problems import Problem
from contrail.console.services.sampler import Sample
from contrail.console.state.visible_rows import (
    ROWS_DEFAULT,
    ROWS_MAX,
    SortUnknown,
    Visible,
    visible_rows,
)

_PLACE_MAX = 10_000_000


class ListQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Rows that fit ``q``, in the order of ``sort`` (``-field``: downwards), from ``first`` on."""

    q: Annotated[str, msgspec.Meta(max_length=255)] = ""
    sort: Annotated[str, msgspec.Meta(max_length=64)] = ""
    first: Annotated[int, msgspec.Meta(ge=0, le=_PLACE_MAX)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)] = ROWS_DEFAULT


class Missing(msgspec.Struct):
    """A broker that did not answer."""

    broker: str
    error: str


def missing_of(sample: Sample) -> list[Missing]:
    return [Missing(broker, error) for broker, error in sorted(sample.partial.items())]


def shown(
    rows: list[Any], query: ListQuery, *, named: str, fields: tuple[str, ...]
) -> Visible[Any]:
    try:
        return visible_rows(
            rows,
            named=named,
            fields=fields,
            q=query.q,
            sort=query.sort,
            first=query.first,
            limit=query.limit,
        )
    except SortUnknown as error:
        raise Problem(HTTPStatus.BAD_REQUEST, str(error)) from error


def known(sample: Sample) -> Sample:
    """The sample; a problem while no NameServer has told any broker."""
    if sample.error is not None:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, sample.error)
    return sample
