"""A real Apache Kafka on this machine without Docker, for `polynya up`, the demo and the tests.

In: a data directory, one node or three. Out: a bootstrap address. The jars come from Maven once (`jars`), the brokers are
plain Java processes (`process`) of a KRaft cluster (`cluster`), and "up" means that it answers (`probe`).
"""

from __future__ import annotations

from compose.kafka.cluster import KafkaCluster
from compose.kafka.errors import KafkaUnavailable
from compose.kafka.jars import default_cache_dir, resolve_jars

__all__ = ["KafkaCluster", "KafkaUnavailable", "default_cache_dir", "resolve_jars"]
