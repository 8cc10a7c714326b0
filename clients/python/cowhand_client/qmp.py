"""A connection to a QMP socket: commands with their answers, events, jobs."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .disk import Disk

# The longest message that is read: a page of a large lineage has some 256 KiB.
MESSAGE_BYTES_MAX = 64 << 20
# Events that wait for a listener at most; older ones are dropped.
EVENTS_MAX = 4096


class QMPError(Exception):
    """A command failed. It has changed nothing, or the text says what."""

    def __init__(self, command: str, error: Mapping[str, Any]) -> None:
        self.command = command
        self.error_class = str(error.get("class", "GenericError"))
        self.description = str(error.get("desc", ""))
        super().__init__(f"{command}: {self.description}")


class Closed(ConnectionError):
    """The server closed the connection, or it was closed here. What became of commands without an answer is not known."""


@dataclass(frozen=True)
class Event:
    """What a server reports by itself."""

    name: str
    data: dict[str, Any]
    seconds: float


class Command:
    """A command, or an action of a transaction: `Command("block-job-set-speed", device="copy", speed=0)`.

    In names of keywords `_` stands for `-`, and those that are None are left out. A mapping has the names as QMP has them:
    `Command("block_set_io_throttle", {"id": "disk", "bps_rd": 0, ...})`.
    """

    def __init__(self, name: str, exact: Mapping[str, Any] | None = None, /, **arguments: Any) -> None:
        self.name = name
        self.arguments = dict(exact or {})
        self.arguments |= {key.replace("_", "-"): value for key, value in arguments.items() if value is not None}


class Server:
    """A server of disks. Commands may be given from several tasks at once; each waits for its own answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listeners: list[tuple[asyncio.Event, deque[Event]]] = []
        self._last_id = 0
        self._ended: BaseException | None = None
        self._receiving: asyncio.Task[None] | None = None
        self.version: dict[str, Any] = {}

    async def _greet(self) -> None:
        greeting = await self._receive()
        if "QMP" not in greeting:
            raise Closed("this is no QMP server: it does not greet as one")
        self.version = greeting["QMP"]["version"]
        self._receiving = asyncio.create_task(self._receive_all())
        await self.execute("qmp_capabilities")

    async def execute(self, command: str, exact: Mapping[str, Any] | None = None, /, **arguments: Any) -> Any:
        """Runs a command and returns its answer; `Command` says how arguments are named."""
        return await self.run(Command(command, exact, **arguments))

    async def run(self, command: Command, /) -> Any:
        """As `execute`, of a command that was made before. A cancelled call leaves the command to the server: its answer is dropped."""
        if self._ended is not None:
            raise Closed(str(self._ended)) from self._ended
        self._last_id += 1
        number = self._last_id
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        message = {"execute": command.name, "arguments": command.arguments, "id": number}
        try:
            self._writer.write(json.dumps(message).encode() + b"\n")
            await self._writer.drain()
            answered = await answer
        finally:
            self._waiting.pop(number, None)
        if "error" in answered:
            raise QMPError(command.name, answered["error"])
        return answered["return"]

    async def transaction(self, *actions: Command) -> None:
        """Runs actions of one moment, all or none."""
        data = [{"type": action.name, "data": action.arguments} for action in actions]
        await self.execute("transaction", actions=data)

    @asynccontextmanager
    async def events(self, *names: str) -> AsyncIterator[AsyncIterator[Event]]:
        """Events of these names, or all, from now on: `async with server.events("JOB_STATUS_CHANGE") as events`."""
        waiting: deque[Event] = deque(maxlen=EVENTS_MAX)
        listener = (asyncio.Event(), waiting)
        self._listeners.append(listener)

        async def received() -> AsyncIterator[Event]:
            while True:
                while waiting:
                    event = waiting.popleft()
                    if not names or event.name in names:
                        yield event
                if self._ended is not None:
                    raise Closed(str(self._ended)) from self._ended
                listener[0].clear()
                await listener[0].wait()

        try:
            yield received()
        finally:
            self._listeners.remove(listener)

    async def finished(self, job: str) -> dict[str, Any]:
        """Waits until a job has ended, dismisses it if it does not dismiss itself, and returns what `query-jobs` said of it last.

        Raises QMPError if the job failed. A job that waits for `job-complete` is completed.
        """
        async with self.events("JOB_STATUS_CHANGE", "JOB_READY") as events:
            last: dict[str, Any] = {}
            while True:
                found = [one for one in await self.execute("query-jobs") if one["id"] == job]
                if not found:
                    return last
                last = found[0]
                if last["status"] == "ready":
                    await self.execute("job-complete", id=job)
                elif last["status"] == "concluded":
                    await self.execute("job-dismiss", id=job)
                    if "error" in last:
                        raise QMPError(f"job {job}", {"desc": last["error"]})
                    return last
                async for event in events:
                    if event.data.get("id") == job and event.data.get("status") != "running":
                        break

    async def completed(self, job: str, started: Awaitable[Any]) -> tuple[Any, dict[str, Any]]:
        """Awaits the command that starts a job, and the job. Returns the command's answer, and the job as it ended. Cancelled, it cancels the job."""
        try:
            return await started, await self.finished(job)
        except asyncio.CancelledError:
            with suppress(QMPError, Closed):
                await self.execute("job-cancel", id=job)
                await self.finished(job)
            raise

    def disk(self, node: str) -> Disk:
        """The disk of a node, for checkpoints."""
        from .disk import Disk

        return Disk(self, node)

    async def close(self) -> None:
        """Closes the connection. The server keeps running."""
        self._end(Closed("the connection is closed"))
        if self._receiving is not None:
            self._receiving.cancel()
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass  # The server was faster.

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _receive(self) -> dict[str, Any]:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise Closed("the server closed the connection")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise Closed("the server sent something other than an object")
        return message

    async def _receive_all(self) -> None:
        try:
            while True:
                self._take(await self._receive())
        except (Closed, OSError, ValueError) as error:
            self._end(error)

    def _take(self, message: dict[str, Any]) -> None:
        if "event" in message:
            time = message.get("timestamp", {})
            seconds = time.get("seconds", 0) + time.get("microseconds", 0) / 1e6
            event = Event(message["event"], message.get("data", {}), seconds)
            for arrived, waiting in self._listeners:
                waiting.append(event)
                arrived.set()
            return
        answer = self._waiting.get(message.get("id", 0))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _end(self, error: BaseException) -> None:
        if self._ended is None:
            self._ended = error
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Closed(str(error)))
        for arrived, _ in self._listeners:
            arrived.set()


async def connect(path: str | os.PathLike[str]) -> Server:
    """Connects to the control socket at `path` (`cowhand serve --qmp`)."""
    reader, writer = await asyncio.open_unix_connection(path, limit=MESSAGE_BYTES_MAX)
    server = Server(reader, writer)
    try:
        await server._greet()
    except BaseException:
        await server.close()
        raise
    return server
