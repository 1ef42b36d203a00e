"""The admin client: topics, groups, offsets, messages and servers of a cluster."""

from __future__ import annotations

from contrail.client.admin_in_flight import InFlightAdmin


class Admin(InFlightAdmin):
    """Looks at a cluster and changes it. Works with Contrail and with RocketMQ 4.9 and 5.x.

    ::

        async with Admin(namesrv="localhost:9876") as admin:
            await admin.create_topic("orders", queues=8)
            print((await admin.lag("billing")).total)

    A question to several brokers is sent to all of them concurrently. If some fail, ``SomeFailed``
    names them and has the result of the others as ``partial``; where a method has
    ``allow_partial``, that result is returned instead if at least one broker answered.
    """
