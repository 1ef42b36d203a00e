"""Errors of the client and the jobs, in the words of the command line.

They name keyword arguments and methods; a person at the command line has options and commands
instead. Each phrase is one of theirs, word for word (a test looks for it).
"""

from __future__ import annotations

_CLIENT = {
    "or correct namesrv=": "or name another by --namesrv or --ctx",
    "create it with create_group()": "create it with `contrail group create`",
    "see groups()": "see `contrail group list`",
    ", or raise max_message_size here and maxMessageSize on the broker": "",
    "use send_many(), which cuts it into batches": "give a smaller --batch",
    "with delay= or deliver_at= at once": "with --delay or --deliver-at at once",
    "use delay_level=": "use --delay-level",
    "more than one of delay_level, delay and deliver_at": (
        "more than one of --delay-level, --delay and --deliver-at"
    ),
    "give keys= to the Message": "give --keys",
    "give tags= to the Message": "give --tags",
    "give delay_level= to the Message": "give --delay-level",
    "give delay= to the Message": "give --delay",
    "give deliver_at= to the Message": "give --deliver-at",
    "give wait_store_ok= to the Message": "leave it out",
    "use transaction() or send_in_transaction()": "programs only: leave it out",
    "use request() and reply()": "programs only: leave it out",
}
_JOBS = {
    "topics and topic_pattern: they": "TOPIC and --pattern: they",
    "topics: give at least one, or topic_pattern": "TOPIC: give at least one, or --pattern",
    "topics: give at least one": "TOPIC: give at least one",
    "follow: it needs a broker": "--follow: it needs a broker",
    "store_path and broker_name: give both": "--store-path and --broker: give both",
    "since_ms: it needs a broker": "--since: it needs a broker",
    "another cluster with to_namesrv": "another cluster with --to-namesrv",
    "that follows: add follow": "that follows: add --follow",
    "say with queues how many": "say with --queues how many",
    "leave queues out, or name": "leave --queues out, or name",
}
PHRASES = _CLIENT | _JOBS


def in_words(error: object) -> str:
    """The text of an error, or of an error that contains it, for the command line."""
    text = str(error)
    for theirs, ours in PHRASES.items():
        text = text.replace(theirs, ours)
    return text
