"""The text of ``contrail dev`` once it is ready: addresses, lines to copy, next steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from contrail.cli.contexts import contexts_path, load_contexts
from contrail.errors import ContrailError

# The default address of commands; `contrail.cli.target` would import the client.
_USUAL_NAMESRV = "127.0.0.1:9876"
_NAMESRV_VARIABLE = "NAMESRV_ADDR"

_TEXT = """\
contrail dev is ready; Ctrl-C ends it

  NameServer  {namesrv}
  broker      {broker}  ({broker_name} of {cluster}; the first send makes a topic)
{slaves}  metrics     {metrics}
{console}  data        {folder}  ({fate})

Send and watch, each in a terminal of its own
  contrail tail{option} orders
  contrail send{option} orders "one coffee"

Python
  from contrail import Message, Producer, PushConsumer

  with Producer(group="baristas", namesrv="{namesrv}") as producer:
      print(producer.send(Message("orders", b"one coffee", tags="new")))
  with PushConsumer("tables", "{namesrv}", consume_from_where="first") as consumer:
      consumer.subscribe("orders")
      for message in consumer:
          print(message.body)

Java, with the official rocketmq-client
  producer.setNamesrvAddr("{namesrv}");      // or -Drocketmq.namesrv.addr={namesrv}
  rocketmq.name-server={namesrv}             # Spring Boot: application.properties

What to try next
  contrail topic list{option}
  contrail group list{option}
  contrail doctor{option}
  contrail top{option}
"""
_CONSOLE = """\
  console     {url}
              {login_link}  (logs in once)
"""
_NO_CONSOLE = "  contrail dev --console     # also the web console's server\n"
_SLAVE = "  slave {broker_id}     {broker}  (process {pid})\n"
_MEMBER = "  member {broker_id}    {broker}  (process {pid})\n"
_MEMBERS = """\
  contrail replication status{option}
  kill -9 {pid}    # ends the leader: another member leads within seconds; it is back after a while
"""
_REPLICAS = """\
  contrail replication status{option}
  kill -9 {pid}    # ends the master: consumers go on at a slave; it is back after a while
"""


def ready_text(facts: Mapping[str, Any]) -> str:
    """The text for a person at a terminal."""
    namesrv = facts["namesrv"]
    fate = "removed at the end; --folder DIR keeps it" if facts["temporary"] else "kept"
    option = "" if _is_assumed(namesrv) else f" -n {namesrv}"
    master, *others = facts["replicas"] or [None]
    is_group = master is not None and master["broker_id"] > 0
    line, more = (_MEMBER, _MEMBERS) if is_group else (_SLAVE, _REPLICAS)
    slaves = "".join(line.format(**one) for one in others)
    console = facts["console"]
    told = "" if console is None else _CONSOLE.format(**console)
    shown = {**facts, "console": told, "metrics": facts["metrics"] or "none", "slaves": slaves}
    text = _TEXT.format(**shown, fate=fate, option=option)
    text += _NO_CONSOLE if console is None else ""
    return text if master is None else text + more.format(pid=master["pid"], option=option)


def _is_assumed(namesrv: str) -> bool:
    """Whether commands find these servers without an option."""
    if os.environ.get(_NAMESRV_VARIABLE):
        return os.environ[_NAMESRV_VARIABLE] == namesrv
    try:
        contexts = load_contexts(contexts_path())
    except ContrailError:
        return False
    if contexts.current is not None:
        return contexts.by_name[contexts.current].namesrv == namesrv
    return bool(namesrv == _USUAL_NAMESRV)
