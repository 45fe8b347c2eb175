"""Topics on the cluster, made what the catalogue says: plan, apply, diff."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final, Self

import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from bus.errors import BusRefusedError, BusUnavailableError, TopicsRefusedError
from bus.plan import Action, Change, Existing, compare, declared_topics, differing, topic_settings
from bus.settings import BusSettings
from schemas.topics import Topic

_log = structlog.get_logger(__name__)
_PAUSE_S: Final = 0.3
_DYNAMIC_TOPIC_CONFIG: Final = 1
"""Kafka's number for a setting that was made on the topic itself."""


class TopicAdmin:
    """Compares and changes topics. Use it as `async with TopicAdmin(settings) as admin`."""

    def __init__(self, settings: BusSettings, *, deadline_s: float = 60.0) -> None:
        self._settings = settings
        self._deadline_s = deadline_s
        self._client: AIOKafkaAdminClient | None = None

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(self._settings.connect_deadline_s):
                while self._client is None:
                    client = AIOKafkaAdminClient(**self._settings.client_options())
                    try:
                        await client.start()
                    except KafkaError as error:
                        await client.close()
                        _log.warning("broker.unreachable", bootstrap=self._settings.bootstrap, error=repr(error))
                        await asyncio.sleep(_PAUSE_S)
                    except BaseException:  # a cancelled start leaves no open client either
                        await client.close()
                        raise
                    else:
                        self._client = client
        except TimeoutError as late:
            raise BusUnavailableError(f"no Kafka at {self._settings.bootstrap}: see whether it runs") from late
        return self

    async def __aexit__(self, *_: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def names(self) -> list[str]:
        """The topics that the cluster has under our prefix, without it, ours and others'."""
        return sorted(await self._existing())

    async def plan(self, extra: Iterable[Topic] = (), *, partitions: int | None = None) -> list[Change]:
        """What `apply` would do, one line per topic. `partitions` overrides the catalogue's number, for small stacks."""
        async with asyncio.timeout(self._deadline_s):
            declared = _with_partitions(declared_topics(extra), partitions)
            existing = await self._existing()
            replication = await self._replication()
        changes = [compare(topic, existing.get(topic.name), replication) for topic in declared]
        names = {topic.name for topic in declared}
        if self._settings.topic_prefix:  # without a prefix the cluster may be anybody's
            changes += [Change(name, Action.UNDECLARED) for name in sorted(existing) if name not in names]
        return changes

    async def diff(self, extra: Iterable[Topic] = (), *, partitions: int | None = None) -> list[Change]:
        """The lines of the plan where the cluster differs from the catalogue."""
        return [c for c in await self.plan(extra, partitions=partitions) if c.action is not Action.NONE]

    async def apply(self, extra: Iterable[Topic] = (), *, partitions: int | None = None) -> list[Change]:
        """Create and alter what differs; returns what was done. Harmless to repeat.

        Raises `TopicsRefusedError`, having changed nothing, when a keyed topic's number of partitions would have to change.
        """
        extra = list(extra)
        changes = await self.diff(extra, partitions=partitions)
        refused = [f"{c.topic}: {', '.join(c.details)}" for c in changes if c.action is Action.REFUSE]
        if refused:
            raise TopicsRefusedError(
                "the number of partitions of a keyed topic never changes, since its keys would move: "
                f"{'; '.join(refused)}. Keep the old number, or make a new topic (another prefix) and drain the old one."
            )
        declared = {t.name: t for t in _with_partitions(declared_topics(extra), partitions)}
        async with asyncio.timeout(self._deadline_s):
            replication = await self._replication()
            await self._create([declared[c.topic] for c in changes if c.action is Action.CREATE], replication)
            await self._alter(
                [declared[c.topic] for c in changes if c.action in (Action.ALTER, Action.GROW)], replication
            )
            await self._grow([declared[c.topic] for c in changes if c.action is Action.GROW])
        return [c for c in changes if c.action is not Action.UNDECLARED]

    async def ensure(self, topics: Iterable[Topic]) -> list[Change]:
        """Create those of these topics that aren't there, and touch nothing else; returns what was created.

        For what a single process brings along: its tables' changelogs, a trainer's dead letters.
        """
        async with asyncio.timeout(self._deadline_s):
            existing = await self._existing()
            missing = [topic for topic in topics if topic.name not in existing]
            replication = await self._replication()
            await self._create(missing, replication)
        return [compare(topic, None, replication) for topic in missing]

    async def delete_all(self) -> None:
        """Delete every topic under the prefix, with its data: for tests, and for a tenant that goes."""
        if not self._settings.topic_prefix:
            raise TopicsRefusedError("refusing to delete every topic of the cluster: there is no topic prefix")
        async with asyncio.timeout(self._deadline_s):
            names = [n for n in await self._client_now.list_topics() if n.startswith(self._settings.topic_prefix)]
            if names:
                await self._client_now.delete_topics(names)

    # -- inside ------------------------------------------------------------------------------------------------------

    @property
    def _client_now(self) -> AIOKafkaAdminClient:
        if self._client is None:
            raise BusUnavailableError("the topic admin isn't connected: use `async with TopicAdmin(settings)`")
        return self._client

    async def _replication(self) -> int:
        described = await self._client_now.describe_cluster()
        return min(3, len(described["brokers"]))

    async def _existing(self) -> dict[str, Existing]:
        """Our topics on the cluster, by the catalogue's names."""
        prefix = self._settings.topic_prefix
        listed = await self._client_now.describe_topics()
        mine = {t["topic"]: t["partitions"] for t in listed if t["topic"].startswith(prefix) and not t["is_internal"]}
        settings = await self._settings_of(list(mine))
        return {
            self._settings.logical(name): Existing(
                partitions=len(parts),
                replication=min((len(p["replicas"]) for p in parts), default=0),
                settings={k: v for k, (v, _) in settings[name].items()},
                own_settings={k: v for k, (v, own) in settings[name].items() if own},
            )
            for name, parts in mine.items()
            if name in settings
        }

    async def _settings_of(self, names: Sequence[str]) -> dict[str, dict[str, tuple[str, bool]]]:
        """Each topic's settings: value, and whether it was set on the topic itself. A topic deleted meanwhile is left out."""
        found: dict[str, dict[str, tuple[str, bool]]] = {}
        if not names:
            return found
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        for response in await self._client_now.describe_configs(resources):
            for code, _, _, name, entries in response.resources:
                if code == 0:
                    found[name] = {e[0]: (e[1], e[3] == _DYNAMIC_TOPIC_CONFIG) for e in entries if e[1] is not None}
        return found

    async def _create(self, topics: Sequence[Topic], replication: int) -> None:
        if not topics:
            return
        wanted = [
            NewTopic(
                self._settings.physical(t.name),
                num_partitions=t.partitions,
                replication_factor=replication,
                topic_configs=topic_settings(t, replication),
            )
            for t in topics
        ]
        response = await self._client_now.create_topics(wanted)
        for name, code, text in response.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:  # another process may apply the same plan
                raise BusRefusedError(f"Kafka refused to create topic {name}: {text or error.__name__}")
        await self._await_visible([t.name for t in topics])
        _log.info("topics.created", count=len(topics), replication=replication)

    async def _await_visible(self, names: Sequence[str]) -> None:
        """Wait until the topics have leaders, so that the first publish doesn't find them half made."""
        physical = [self._settings.physical(name) for name in names]
        while True:
            described = await self._client_now.describe_topics(physical)
            if all(t["error_code"] == 0 and all(p["leader"] >= 0 for p in t["partitions"]) for t in described):
                return
            await asyncio.sleep(_PAUSE_S)

    async def _alter(self, topics: Sequence[Topic], replication: int) -> None:
        """Set our settings. The client's call replaces all of a topic's settings, so an operator's others go along."""
        if not topics:
            return
        existing = await self._existing()
        wanted = {t.name: topic_settings(t, existing[t.name].replication or replication) for t in topics}
        resources = [
            ConfigResource(
                ConfigResourceType.TOPIC,
                self._settings.physical(t.name),
                configs=existing[t.name].own_settings | wanted[t.name],
            )
            for t in topics
        ]
        for response in await self._client_now.alter_configs(resources):
            for code, text, _, name in response.resources:
                if code:
                    raise BusRefusedError(f"Kafka refused the settings of {name}: {text or for_code(code).__name__}")
        while True:
            found = await self._existing()
            if not any(differing(settings, found[name].settings) for name, settings in wanted.items()):
                break
            await asyncio.sleep(_PAUSE_S)  # the brokers learn it from the controller a moment later
        _log.info("topics.altered", count=len(topics))

    async def _grow(self, topics: Sequence[Topic]) -> None:
        if topics:
            await self._client_now.create_partitions(
                {self._settings.physical(t.name): NewPartitions(t.partitions) for t in topics}
            )


def _with_partitions(topics: Sequence[Topic], partitions: int | None) -> list[Topic]:
    return [dataclasses.replace(t, partitions=partitions) for t in topics] if partitions else list(topics)
