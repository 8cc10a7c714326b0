"""Disks in asyncio's loop: requests are awaited, and the library's eventfd wakes the loop.

A `Disk` belongs to the loop that opened it. A task that is cancelled leaves its request or call running: a buffer is
kept until that has ended.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import threading
from types import TracebackType
from typing import Any, AsyncIterator, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple, Type, TypeVar

from . import _checkpoints, _disk, _jobs
from ._call import Error, Option, PathLike, check, connect, ffi, lib, write_flags, zero_flags
from ._checkpoints import Checkpoint, Difference, Forgotten, Published, Removed, Restored
from ._disk import Extent, Info, Snapshot
from ._jobs import JobInfo

__all__ = ["Disk", "Job", "create", "open", "restore"]

_T = TypeVar("_T")

# Requests in flight at a time; more wait.
_DEPTH = 128

# Members of an iterator that are brought from a thread at once.
_BATCH = 256


async def create(
    path: PathLike,
    size: int,
    format: str = "qcow2",
    backing: Optional[str] = None,
    backing_format: Optional[str] = None,
) -> None:
    """Makes an image, as `cowhand.create` does."""
    await asyncio.to_thread(_disk.create, path, size, format, backing, backing_format)


async def restore(
    path: PathLike, source: str, *, at: Optional[str] = None, key_secret: Optional[str] = None
) -> Restored:
    """Makes a disk that begins as a published checkpoint, as `cowhand.restore` does."""
    return await asyncio.to_thread(_checkpoints.restore, path, source, at=at, key_secret=key_secret)


async def open(
    path: Optional[PathLike] = None,
    *,
    driver: str = "auto",
    options: Optional[Mapping[str, Option]] = None,
    **named: Option,
) -> "Disk":
    """Opens the image at `path`, or the `drive`, as `cowhand.open` does."""

    def work() -> _disk.Disk:
        disk = _disk.Disk(connect(path, driver, {**(options or {}), "queue-size": _DEPTH}, named))
        check(lib.cowhand_start(disk._disk))
        return disk

    return Disk(await asyncio.to_thread(work))


class Disk:
    """An open disk in the loop that opened it."""

    def __init__(self, blocking: _disk.Disk) -> None:
        self._loop = asyncio.get_running_loop()
        #: The same disk for threads that wait.
        self.blocking = blocking
        queue = ffi.new("cowhand_queue **")
        check(lib.cowhand_get_queue(blocking._disk, 0, queue))
        self._queue = queue[0]
        self._done = ffi.new("cowhand_completion[]", _DEPTH)
        self._places = asyncio.Semaphore(_DEPTH)
        # By number: the future, and the buffer that the request fills or reads.
        self._running: Dict[int, Tuple["asyncio.Future[None]", Any]] = {}
        # Calls in other threads.
        self._calls: Set["asyncio.Future[Any]"] = set()
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

    async def info(self) -> Info:
        """What it is, now: a job or a checkpoint changes the chain."""
        return await self._call(self.blocking.info)

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
        """Waits for requests and calls, writes what is in memory, and gives the locks back."""
        if self._is_closing:
            return
        self._is_closing = True
        futures = {future for future, _ in self._running.values()} | self._calls
        if futures:
            await asyncio.wait(futures)
        self._loop.remove_reader(self._fd)
        await asyncio.to_thread(self.blocking.close)

    def map(self, offset: int = 0, length: Optional[int] = None) -> AsyncIterator[Extent]:
        """The extents from `offset` on, in order and without gaps, asked for while the iterator advances."""
        return self._each(self.blocking.map(offset, length))

    async def snapshots(self) -> List[Snapshot]:
        """The internal snapshots, in the order in which they were taken."""
        return await self._call(self.blocking.snapshots)

    async def create_snapshot(self, name: str) -> None:
        """Takes a snapshot of the disk as it is."""
        await self._call(self.blocking.create_snapshot, name)

    async def apply_snapshot(self, id_or_name: str) -> None:
        """Goes back to a snapshot; everything written since is lost."""
        await self._call(self.blocking.apply_snapshot, id_or_name)

    async def delete_snapshot(self, id_or_name: str) -> None:
        """Deletes a snapshot."""
        await self._call(self.blocking.delete_snapshot, id_or_name)

    async def limits(self) -> Dict[str, int]:
        """The limits in force, by QEMU's names."""
        return await self._call(self.blocking.limits)

    async def set_limits(self, limits: Mapping[str, int]) -> None:
        """Puts limits in force instead of all that were; none lifts them."""
        await self._call(self.blocking.set_limits, limits)

    async def statistics(self) -> Dict[str, Any]:
        """What has passed since the disk was opened: of each kind of request count, failures, bytes and time."""
        return await self._call(self.blocking.statistics)

    async def resize(self, size: int, *, shrink: bool = False) -> None:
        """Changes the size; a smaller one is meant only with `shrink`."""
        await self._call(self.blocking.resize, size, shrink=shrink)

    async def commit(self, *, top: int = 0, base: Optional[int] = None, speed: int = 0) -> "Job":
        """Copies what the images from `top` on hold into `base` (the lowest), counted from the disk's own, which is 0."""
        return Job(await self._call(self.blocking.commit, top=top, base=base, speed=speed))

    async def stream(self, *, base: Optional[int] = None, speed: int = 0) -> "Job":
        """Copies what the backing files above `base` hold into the disk's own image."""
        return Job(await self._call(self.blocking.stream, base=base, speed=speed))

    async def mirror(
        self,
        target: Optional[PathLike],
        *,
        copied: str = "everything",
        synchronous: bool = False,
        speed: int = 0,
        driver: str = "auto",
        options: Optional[Mapping[str, Option]] = None,
    ) -> "Job":
        """Keeps a copy of the disk in `target`, an image of the same size; `copied`: "everything", "top" or "nothing".

        With None as the target, `options` have a "drive"."""
        how = {"copied": copied, "synchronous": synchronous, "speed": speed, "driver": driver, "options": options}
        return Job(await self._call(self.blocking.mirror, target, **how))

    async def backup(
        self,
        target: Optional[PathLike],
        *,
        copied: str = "everything",
        break_writes: bool = False,
        speed: int = 0,
        driver: str = "auto",
        options: Optional[Mapping[str, Option]] = None,
    ) -> "Job":
        """Copies the disk as it is when this returns to `target`, an image of the same size; None is as for `mirror`."""
        how = {"copied": copied, "break_writes": break_writes, "speed": speed, "driver": driver, "options": options}
        return Job(await self._call(self.blocking.backup, target, **how))

    async def checkpoint(self, name: Optional[str] = None, labels: Optional[Mapping[str, str]] = None) -> str:
        """Seals the disk as it is, while it is in use; it continues in a new overlay. Gives the id."""
        return await self._call(self.blocking.checkpoint, name, labels)

    async def checkpoints(self) -> List[Checkpoint]:
        """All of the disk and its forks, the oldest first."""
        return await self._call(self.blocking.checkpoints)

    async def rollback(self, checkpoint: str) -> str:
        """Has the disk continue from a checkpoint; gives the id of what it was. The guest must not use it meanwhile."""
        return await self._call(self.blocking.rollback, checkpoint)

    async def fork(self, checkpoint: str, path: PathLike, count: int = 0) -> None:
        """Makes a disk that begins as a checkpoint is, beside this one; or `count` with a number before the extension."""
        await self._call(self.blocking.fork, checkpoint, path, count)

    def differences(self, checkpoint: str, other: Optional[str] = None) -> AsyncIterator[Difference]:
        """Where a checkpoint and another one, or the disk, may differ, by their maps; asked for while it advances."""
        return self._each(self.blocking.differences(checkpoint, other))

    async def delete_checkpoint(self, checkpoint: str, *, list_only: bool = False) -> Removed:
        """Deletes a checkpoint; a layer that others need stays, without a name."""
        return await self._call(self.blocking.delete_checkpoint, checkpoint, list_only=list_only)

    async def collect_layers(self, *, unnamed: bool = False, list_only: bool = False) -> Removed:
        """Removes layers that nothing needs any more; with `unnamed` also checkpoints without a name."""
        return await self._call(self.blocking.collect_layers, unnamed=unnamed, list_only=list_only)

    async def forget(
        self,
        *,
        keep: Optional[str] = None,
        max_depth: int = 0,
        max_waste: Optional[int] = None,
        speed: int = 0,
        list_only: bool = False,
        save: bool = False,
    ) -> "Forgotten[Job]":
        """Forgets checkpoints that a policy ("hourly:24,daily:7") does not keep; a job merges layers under the disk.

        With `save` the policy is the lineage's from then on, and counts where none is given; an empty one takes it away.
        """
        how = {"keep": keep, "max_depth": max_depth, "max_waste": max_waste, "speed": speed}
        found = await self._call(self.blocking.forget, **how, list_only=list_only, save=save)
        job = None if found.job is None else Job(found.job)
        return Forgotten(found.checkpoints, found.removed, found.merged, found.too_deep, job)

    async def publish(
        self,
        checkpoint: str,
        target: str,
        *,
        parent: Optional[str] = None,
        key_secret: Optional[str] = None,
        chunk_size: int = 0,
        compress: bool = True,
        force: bool = False,
        speed: int = 0,
    ) -> "Published[Job]":
        """Uploads a checkpoint to s3://BUCKET/FOLDER/NAME as a job, while the disk is in use; only what the store lacks."""
        how = {"parent": parent, "key_secret": key_secret, "chunk_size": chunk_size, "compress": compress}
        made = await self._call(self.blocking.publish, checkpoint, target, **how, force=force, speed=speed)
        return Published(made.id, made.image, Job(made.job))

    async def push(
        self,
        target: str,
        *,
        bitmap: Optional[str] = None,
        key_secret: Optional[str] = None,
        chunk_size: int = 0,
        compress: bool = True,
        force: bool = False,
        speed: int = 0,
    ) -> "Job":
        """Uploads the disk as it is when this returns to s3://BUCKET/FOLDER/NAME, while it is in use.

        With `bitmap`, which has recorded all changes since the last push there, only what that has as changed is read."""
        how = {"bitmap": bitmap, "key_secret": key_secret, "chunk_size": chunk_size, "compress": compress}
        return Job(await self._call(self.blocking.push, target, **how, force=force, speed=speed))

    async def _call(self, call: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
        """Runs what blocks in another thread."""
        if self._is_closing:
            raise Error(errno.ESHUTDOWN, "the disk is closed")
        running = asyncio.ensure_future(asyncio.to_thread(call, *arguments, **named))
        self._calls.add(running)
        running.add_done_callback(self._calls.discard)
        # The call ends by itself, also when the task that awaits it has been cancelled: no task may be left to look at it.
        running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(running)

    async def _each(self, found: Iterator[_T]) -> AsyncIterator[_T]:
        batch = await self._call(_next_batch, found)
        while batch:
            for member in batch:
                yield member
            batch = await self._call(_next_batch, found)

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


class Job:
    """A job on a disk, which continues when this is dropped."""

    def __init__(self, blocking: _jobs.Job) -> None:
        #: The same job for threads that wait.
        self.blocking = blocking

    async def info(self) -> JobInfo:
        """How far it is; of one that has ended, its end."""
        return await asyncio.to_thread(self.blocking.info)

    async def wait_ready(self) -> None:
        """Waits until the copy is in step with the disk, or the job has ended."""
        await _in_its_own_thread(self.blocking.wait_ready)

    async def wait(self) -> None:
        """Waits until it has ended; raises why it failed, or ECANCELED."""
        await _in_its_own_thread(self.blocking.wait)

    async def complete(self) -> None:
        """Has the disk switch to the copy, of a job that is ready."""
        await asyncio.to_thread(self.blocking.complete)

    async def cancel(self) -> None:
        """Has it end. A mirror that is ready leaves a whole copy."""
        await asyncio.to_thread(self.blocking.cancel)

    async def pause(self) -> None:
        """Has it rest."""
        await asyncio.to_thread(self.blocking.pause)

    async def resume(self) -> None:
        """Has it work again."""
        await asyncio.to_thread(self.blocking.resume)

    async def set_speed(self, speed: int) -> None:
        """Sets its limit in bytes a second; 0 is none."""
        await asyncio.to_thread(self.blocking.set_speed, speed)


def _next_batch(found: Iterator[_T]) -> List[_T]:
    return list(itertools.islice(found, _BATCH))


async def _in_its_own_thread(wait: Callable[[], None]) -> None:
    """Runs what may block for hours: many of them in asyncio's threads would leave none for the call that ends them."""
    loop = asyncio.get_running_loop()
    ended: "asyncio.Future[None]" = loop.create_future()

    def end(error: Optional[BaseException]) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def work() -> None:
        error: Optional[BaseException] = None
        try:
            wait()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(end, error)
        except RuntimeError:
            # The loop has been closed meanwhile.
            pass

    threading.Thread(target=work, name="cowhand-job", daemon=True).start()
    await ended
