"""Disks in asyncio's loop: requests are awaited, and the library's eventfd wakes the loop.

A `Disk` belongs to the loop that opened it. A task that is cancelled leaves its request running: its buffer is kept
until that has ended.
"""

from __future__ import annotations

import asyncio
import errno
from types import TracebackType
from typing import Any, Dict, Mapping, Optional, Tuple, Type

from . import _disk
from ._call import Error, Option, PathLike, check, connect, ffi, lib, write_flags, zero_flags

__all__ = ["Disk", "open"]

# Requests in flight at a time; more wait.
_DEPTH = 128


async def open(
    path: PathLike, *, driver: str = "auto", options: Optional[Mapping[str, Option]] = None, **named: Option
) -> "Disk":
    """Opens the image at `path`, as `cowhand.open` does."""

    def work() -> _disk.Disk:
        disk = _disk.Disk(connect(path, driver, {**(options or {}), "queue-size": _DEPTH}, named))
        check(lib.cowhand_start(disk._disk))
        return disk

    return Disk(await asyncio.to_thread(work))


class Disk:
    """An open disk in the loop that opened it."""

    def __init__(self, blocking: _disk.Disk) -> None:
        self._loop = asyncio.get_running_loop()
        #: For what is not awaited: `map`, snapshots, limits, figures. These calls block; `asyncio.to_thread` runs them elsewhere.
        self.blocking = blocking
        queue = ffi.new("cowhand_queue **")
        check(lib.cowhand_get_queue(blocking._disk, 0, queue))
        self._queue = queue[0]
        self._done = ffi.new("cowhand_completion[]", _DEPTH)
        self._places = asyncio.Semaphore(_DEPTH)
        # By number: the future, and the buffer that the request fills or reads.
        self._running: Dict[int, Tuple["asyncio.Future[None]", Any]] = {}
        self._next = 0
        self._is_closing = False
        self._fd = check(lib.cowhand_completion_fd(self._queue))
        self._loop.add_reader(self._fd, self._take)

    async def __aenter__(self) -> "Disk":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    @property
    def size(self) -> int:
        """Bytes, now."""
        return self.blocking.size

    async def read(self, offset: int, length: int) -> bytes:
        """The `length` bytes at `offset`."""
        buffer = bytearray(length)
        await self.readinto(offset, buffer)
        return bytes(buffer)

    async def readinto(self, offset: int, buffer: Any) -> None:
        """Fills a writable buffer with the bytes at `offset`."""
        memory = ffi.from_buffer("char[]", buffer, require_writable=True)
        await self._run(memory, lib.cowhand_read, offset, memory, len(memory), flags=0)

    async def write(self, offset: int, data: Any, *, fua: bool = False) -> None:
        """Writes a buffer at `offset`; with `fua` it is durable then, otherwise after `flush`."""
        memory = ffi.from_buffer("char[]", data)
        await self._run(memory, lib.cowhand_write, offset, memory, len(memory), flags=write_flags(fua))

    async def flush(self) -> None:
        """Makes durable what was written before."""
        await self._run(None, lib.cowhand_flush, flags=0)

    async def discard(self, offset: int, length: int) -> None:
        """The range is of no use any more."""
        await self._run(None, lib.cowhand_discard, offset, length, flags=0)

    async def write_zeroes(
        self, offset: int, length: int, *, unmap: bool = True, fallback: bool = True, fua: bool = False
    ) -> None:
        """Makes a range read as zeroes."""
        flags = zero_flags(unmap, fallback, fua)
        await self._run(None, lib.cowhand_write_zeroes, offset, length, flags=flags)

    async def close(self) -> None:
        """Waits for the requests in flight, writes what is in memory, and gives the locks back."""
        if self._is_closing:
            return
        self._is_closing = True
        futures = [future for future, _ in self._running.values()]
        if futures:
            await asyncio.wait(futures)
        self._loop.remove_reader(self._fd)
        await asyncio.to_thread(self.blocking.close)

    async def _run(self, buffer: Any, submit: Any, *arguments: Any, flags: int) -> None:
        await self._places.acquire()
        if self._is_closing:
            self._places.release()
            raise Error(errno.ESHUTDOWN, "the disk is closed")
        number = self._next
        self._next += 1
        try:
            check(submit(self._queue, *arguments, number, flags))
        except BaseException:
            self._places.release()
            raise
        future: "asyncio.Future[None]" = self._loop.create_future()
        self._running[number] = (future, buffer)
        # The future ends with the request, also when the task that awaits it has been cancelled.
        await asyncio.shield(future)

    def _take(self) -> None:
        """Takes the completions that are there."""
        count = check(lib.cowhand_do_io(self._queue, self._done, 0, _DEPTH, 0))
        for index in range(count):
            completion = self._done[index]
            future, _ = self._running.pop(completion.user_data)
            self._places.release()
            if completion.ret == 0:
                future.set_result(None)
            else:
                words = ffi.string(completion.message).decode("utf-8", "replace")
                future.set_exception(Error(-completion.ret, words))
                # No task may be left to look at it.
                future.exception()
