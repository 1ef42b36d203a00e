"""The client library: producers, consumers and the admin client.

The asyncio names are in ``contrail.aio``, the blocking ones in ``contrail``.
"""
