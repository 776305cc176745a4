"""The states of sessions in the Redis that the replicas share, without texts of conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import Any, cast, final

import orjson

from batuta.clients.redis_connections import RedisConnections
from batuta.conductors.sessions.state import (
    MOST_THREADS,
    SessionEntry,
    SessionState,
    SessionThread,
    WarmPrefix,
)
from batuta.core import Cost, WorkerId
from batuta.gateway.serving.tenant_memory import KEPT_SECONDS, LocalSessions
from batuta.store.ledger import nano_to_usd, usd_cap_to_nano, usd_to_nano

# Redis itself adds the amounts, so no update of another replica is lost.
_NOTE = """
local key, thread, turn, state = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local replaces = ARGV[9]
redis.call('HINCRBY', key, 'nano', ARGV[4])
redis.call('HINCRBY', key, 'unpriced', ARGV[5])
redis.call('HINCRBY', key, 'consultations', ARGV[6])
redis.call('HINCRBY', key, 'counted', ARGV[10])
redis.call('HDEL', key, 'held:' .. ARGV[11])
if thread ~= '' then
  local before = redis.call('HGET', key, 'turn:' .. thread)
  if before ~= turn and replaces == '' then redis.call('HINCRBY', key, 'turns', 1) end
  redis.call('HSET', key, 'turn:' .. thread, turn, 'thread:' .. thread, state)
  local order, kept = thread, 1
  for one in string.gmatch(redis.call('HGET', key, 'order') or '', '[^ ]+') do
    if one ~= thread then
      if one ~= replaces and kept < tonumber(ARGV[7]) then
        order, kept = order .. ' ' .. one, kept + 1
      else
        redis.call('HDEL', key, 'turn:' .. one, 'thread:' .. one)
      end
    end
  end
  redis.call('HSET', key, 'order', order)
end
redis.call('EXPIRE', key, ARGV[8])
return redis.call('HGETALL', key)
"""


_HOLD = """
local key, own, wanted, least = KEYS[1], 'held:' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local room, fields = tonumber(ARGV[4]), redis.call('HGETALL', key)
for at = 1, #fields, 2 do
  local name = fields[at]
  if name == 'nano' or name == 'counted' or (string.sub(name, 1, 5) == 'held:' and name ~= own) then
    room = room - tonumber(fields[at + 1])
  end
end
if room < least then return -1 end
local held = math.min(wanted, room)
redis.call('HSET', key, own, string.format('%.0f', held))
redis.call('EXPIRE', key, ARGV[5])
return held
"""


@final
class RedisSessions:
    """The sessions of all replicas in Redis; while Redis is down, those of this replica."""

    def __init__(self, redis: RedisConnections) -> None:
        self._redis = redis
        self._local = LocalSessions(clock=redis.clock)

    async def load(self, tenant: str, session: str) -> SessionState:
        """Return the session's state; a new one if it is unknown."""
        found: Any = await self._redis.ask(lambda redis: redis.hgetall(_redis_key(session)))
        if found is None:
            return await self._local.load(tenant, session)
        return read_state(found)

    async def note(self, tenant: str, session: str, entry: SessionEntry) -> SessionState:
        """Add a finished request, and return the new state."""
        after = entry.after
        args = (
            entry.thread,
            after.turn,
            orjson.dumps(asdict(after)),
            usd_to_nano(entry.cost.usd),
            entry.cost.unpriced_calls,
            entry.consultations,
            MOST_THREADS,
            int(KEPT_SECONDS),
            entry.replaces,
            usd_to_nano(entry.counted),
            entry.run,
        )
        stored: Any = await self._redis.ask(
            lambda redis: redis.eval(_NOTE, 1, _redis_key(session), *args)
        )
        if stored is None:
            return await self._local.note(tenant, session, entry)
        flat = cast("list[Any]", stored)
        return read_state(dict(zip(flat[::2], flat[1::2], strict=True)))

    async def hold(
        self, tenant: str, session: str, run: str, *, usd: Decimal, least: Decimal, most: Decimal
    ) -> Decimal | None:
        """Set the run's reservation; see `SessionMemory.hold`."""
        nano = (usd_to_nano(usd), usd_to_nano(least), usd_cap_to_nano(most))
        args = (run, *nano, int(KEPT_SECONDS))
        held: Any = await self._redis.ask(
            lambda redis: redis.eval(_HOLD, 1, _redis_key(session), *args)
        )
        if held is None:
            return await self._local.hold(tenant, session, run, usd=usd, least=least, most=most)
        return None if held < 0 else min(usd, nano_to_usd(int(held)))


_HELD = "held:"
"""The prefix of fields with a run's reservation; the run's id follows."""


def _redis_key(session: str) -> str:
    return f"batuta:session:{{{session}}}"


def read_state(fields: Mapping[Any, Any]) -> SessionState:
    """Parse the state from its Redis hash; threads that cannot be parsed are left out."""
    texts = {_as_text(name): value for name, value in fields.items()}
    order = _as_text(texts.get("order", "")).split()
    threads = {key: _read_thread(texts.get(f"thread:{key}")) for key in reversed(order)}
    return SessionState(
        cost=Cost(
            nano_to_usd(int(texts.get("nano", 0))), unpriced_calls=int(texts.get("unpriced", 0))
        ),
        counted=nano_to_usd(int(texts.get("counted", 0))),
        holds={
            name.removeprefix(_HELD): nano_to_usd(int(nano))
            for name, nano in texts.items()
            if name.startswith(_HELD)
        },
        turns=int(texts.get("turns", 0)),
        consultations=int(texts.get("consultations", 0)),
        threads={key: thread for key, thread in threads.items() if thread is not None},
    )


def _as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _read_thread(written: Any) -> SessionThread | None:
    """Return the thread from its JSON; None if it cannot be parsed."""
    try:
        known = cast("dict[str, Any]", orjson.loads(written or b""))
        warm = {
            WorkerId(worker): WarmPrefix(int(each["tokens"]), float(each["at"]))
            for worker, each in known["warm"].items()
        }
        acting = known["acting"]
        return SessionThread(
            acting=None if acting is None else WorkerId(acting),
            turn=known["turn"],
            tokens=int(known["tokens"]),
            waits=bool(known["waits"]),
            failures={key: int(count) for key, count in known["failures"].items()},
            forgotten={key: int(count) for key, count in known["forgotten"].items()},
            compacted=bool(known["compacted"]),
            tools=str(known.get("tools", "")),
            warm=warm,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
