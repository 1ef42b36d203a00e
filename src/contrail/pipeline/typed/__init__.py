"""Typed columns of bodies: JSON, Avro and protobuf by a schema."""
