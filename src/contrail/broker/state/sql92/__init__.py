"""SQL92 filters over message properties, with the results and remarks of RocketMQ's own."""

from contrail.broker.state.sql92.filter import Answer, Sql92Filter, compile_sql
from contrail.broker.state.sql92.parser import unread_rest

__all__ = ["Answer", "Sql92Filter", "compile_sql", "unread_rest"]
