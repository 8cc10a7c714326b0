"""Disks, used by threads that wait."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Dict, Iterator, List, Mapping, Optional, Type, Union

from ._call import (
    Error,
    Option,
    PathLike,
    check,
    connect,
    ffi,
    flag,
    lib,
    number,
    parsed,
    prepare,
    text_of,
    write_flags,
    zero_flags,
)
from ._checkpoints import Checkpoints, since_epoch
from ._jobs import Job

# Extents that one call of the library is asked for.
_EXTENTS = 256

_COPIED = {
    "everything": lib.COWHAND_COPY_EVERYTHING,
    "top": lib.COWHAND_COPY_TOP,
    "nothing": lib.COWHAND_COPY_NOTHING,
}


@dataclass(frozen=True)
class Info:
    """What an open disk is."""

    #: The format of its own image.
    driver: str
    #: Paths of the images, its own first: jobs and extents count them so.
    chain: List[str]
    #: Bytes.
    size: int
    read_only: bool
    #: Discards give space back.
    discards: bool
    #: Requests that are multiples of it reach the device as they are; others work too, and cost more.
    request_alignment: int
    optimal_io_alignment: int
    #: What is given back together.
    discard_alignment: int


@dataclass(frozen=True)
class Extent:
    """A range of a disk in one state."""

    offset: int
    length: int
    #: Which image knows of the range: 0 is the disk's own, 1 its backing image, and so on.
    depth: int
    #: An image of the chain knows of the range, be it data or zeroes.
    present: bool
    #: There are bytes to read.
    data: bool
    #: It reads as zeroes.
    zero: bool
    #: No space is behind it in the disk's own file.
    hole: bool
    compressed: bool
    #: Where the bytes are in the file of their image, if they are there as they are.
    file_offset: Optional[int]


@dataclass(frozen=True)
class Snapshot:
    """An internal snapshot of a qcow2 image."""

    id: str
    name: str
    taken: datetime
    #: How long the guest had been running.
    vm_clock: timedelta
    #: Size of the disk at that time; None in old images.
    size: Optional[int]


def create(
    path: PathLike,
    size: int,
    format: str = "qcow2",
    backing: Optional[str] = None,
    backing_format: Optional[str] = None,
) -> None:
    """Makes an image for a disk of `size` bytes. A file that exists is refused (EEXIST)."""
    name = ffi.NULL if backing is None else ffi.new("char[]", backing.encode())
    of = ffi.NULL if backing_format is None else ffi.new("char[]", backing_format.encode())
    check(lib.cowhand_create_image(os.fsencode(path), format.encode(), size, name, of))


def add_secret(id: str, secret: Union[bytes, str]) -> None:
    """Adds the password or key that options call `id` (`encrypt.key-secret`, `key-secret`), for all disks."""
    data = secret.encode() if isinstance(secret, str) else secret
    check(lib.cowhand_add_secret(id.encode(), data, len(data)))


def remove_secret(id: str) -> None:
    """Removes the secret called `id`; disks that were opened with it stay open."""
    check(lib.cowhand_remove_secret(id.encode()))


def open(
    path: Optional[PathLike] = None,
    *,
    driver: str = "auto",
    options: Optional[Mapping[str, Option]] = None,
    **named: Option,
) -> "Disk":
    """Opens the image at `path`. Every option of a drive is a keyword, with `_` for `-`; or stands in `options`.

    A name such as "nbd://HOST/EXPORT" is a path, too. Without one the keyword `drive` has the whole drive: "json:{...}"."""
    return Disk(connect(path, driver, options or {}, named))


class Disk(Checkpoints):
    """An open disk. Its methods may be called from any thread; they block."""

    def __init__(self, place: Any) -> None:
        self._place = place

    @property
    def _disk(self) -> Any:
        return self._place[0]

    def __enter__(self) -> "Disk":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_place"):
            lib.cowhand_destroy(self._place)

    def close(self) -> None:
        """Writes what is in memory, and gives the locks back. A second call does nothing."""
        check(lib.cowhand_destroy(self._place))

    @property
    def size(self) -> int:
        """Bytes, now."""
        return number(self._disk, "capacity")

    def info(self) -> Info:
        """What it is, now: a job or a checkpoint changes the chain."""
        return Info(
            driver=text_of(lib.cowhand_get_str, self._disk, b"driver"),
            chain=parsed(lib.cowhand_get_str, self._disk, b"chain"),
            size=self.size,
            read_only=flag(self._disk, "read-only"),
            discards=flag(self._disk, "discard"),
            request_alignment=number(self._disk, "request-alignment"),
            optimal_io_alignment=number(self._disk, "optimal-io-alignment"),
            discard_alignment=number(self._disk, "discard-alignment"),
        )

    def read(self, offset: int, length: int) -> bytes:
        """The `length` bytes at `offset`."""
        buffer = bytearray(length)
        self.readinto(offset, buffer)
        return bytes(buffer)

    def readinto(self, offset: int, buffer: Any) -> None:
        """Fills a writable buffer with the bytes at `offset`."""
        memory = ffi.from_buffer("char[]", buffer, require_writable=True)
        check(lib.cowhand_read_blocking(self._disk, offset, memory, len(memory)))

    def write(self, offset: int, data: Any, *, fua: bool = False) -> None:
        """Writes a buffer at `offset`; with `fua` it is durable then, otherwise after `flush`."""
        memory = ffi.from_buffer("char[]", data)
        check(lib.cowhand_write_blocking(self._disk, offset, memory, len(memory), write_flags(fua)))

    def flush(self) -> None:
        """Makes durable what was written before."""
        check(lib.cowhand_flush_blocking(self._disk))

    def discard(self, offset: int, length: int) -> None:
        """The range is of no use any more; a disk that was opened with `discard=True` gives its space back."""
        check(lib.cowhand_discard_blocking(self._disk, offset, length))

    def write_zeroes(
        self, offset: int, length: int, *, unmap: bool = True, fallback: bool = True, fua: bool = False
    ) -> None:
        """Makes a range read as zeroes. Without `fallback` it fails (EOPNOTSUPP) rather than write them."""
        flags = zero_flags(unmap, fallback, fua)
        check(lib.cowhand_write_zeroes_blocking(self._disk, offset, length, flags))

    def map(self, offset: int = 0, length: Optional[int] = None) -> Iterator[Extent]:
        """The extents from `offset` on, in order and without gaps, asked for while the iterator advances."""
        end = self.size if length is None else offset + length
        found = ffi.new("cowhand_extent[]", _EXTENTS)
        while offset < end:
            count = check(lib.cowhand_extents(self._disk, offset, end - offset, found, _EXTENTS))
            if count == 0:
                raise Error(errno.EIO, f"no extent is at offset {offset}")
            # The array is filled again while the caller has what came before.
            extents = [_extent(found[index]) for index in range(count)]
            yield from extents
            offset = extents[-1].offset + extents[-1].length

    def snapshots(self) -> List[Snapshot]:
        """The internal snapshots, in the order in which they were taken."""
        return [_snapshot(entry) for entry in parsed(lib.cowhand_snapshots, self._disk)]

    def create_snapshot(self, name: str) -> None:
        """Takes a snapshot of the disk as it is."""
        check(lib.cowhand_create_snapshot(self._disk, name.encode()))

    def apply_snapshot(self, id_or_name: str) -> None:
        """Goes back to a snapshot; everything written since is lost."""
        check(lib.cowhand_apply_snapshot(self._disk, id_or_name.encode()))

    def delete_snapshot(self, id_or_name: str) -> None:
        """Deletes a snapshot."""
        check(lib.cowhand_delete_snapshot(self._disk, id_or_name.encode()))

    def limits(self) -> Dict[str, int]:
        """The limits in force, by QEMU's names."""
        limits: Dict[str, int] = parsed(lib.cowhand_get_limits, self._disk)
        return limits

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """Puts limits in force instead of all that were; none lifts them."""
        names = [ffi.new("char[]", name.encode()) for name in limits]
        array = ffi.new("cowhand_limit[]", [{"name": name, "value": limits[key]} for name, key in zip(names, limits)])
        check(lib.cowhand_set_limits(self._disk, array, len(names)))

    def statistics(self) -> Dict[str, Any]:
        """What has passed since the disk was opened: of each kind of request count, failures, bytes and time."""
        figures: Dict[str, Any] = parsed(lib.cowhand_statistics, self._disk)
        return figures

    def resize(self, size: int, *, shrink: bool = False) -> None:
        """Changes the size; a smaller one is meant only with `shrink`."""
        check(lib.cowhand_resize(self._disk, size, lib.COWHAND_RESIZE_SHRINK if shrink else 0))

    def commit(self, *, top: int = 0, base: Optional[int] = None, speed: int = 0) -> Job:
        """Copies what the images from `top` on hold into `base` (the lowest), counted from the disk's own, which is 0."""
        lowest = lib.COWHAND_LOWEST if base is None else base
        return self._job(lambda job: lib.cowhand_commit(self._disk, top, lowest, speed, job))

    def stream(self, *, base: Optional[int] = None, speed: int = 0) -> Job:
        """Copies what the backing files above `base` hold into the disk's own image."""
        lowest = lib.COWHAND_LOWEST if base is None else base
        return self._job(lambda job: lib.cowhand_stream(self._disk, lowest, speed, job))

    def mirror(
        self,
        target: Optional[PathLike],
        *,
        copied: str = "everything",
        synchronous: bool = False,
        speed: int = 0,
        driver: str = "auto",
        options: Optional[Mapping[str, Option]] = None,
    ) -> Job:
        """Keeps a copy of the disk in `target`, an image of the same size; `copied`: "everything", "top" or "nothing".

        With None as the target, `options` have a "drive"."""
        flags = lib.COWHAND_MIRROR_SYNCHRONOUS if synchronous else 0
        return self._copy(lib.cowhand_mirror, target, driver, options, copied, flags, speed)

    def backup(
        self,
        target: Optional[PathLike],
        *,
        copied: str = "everything",
        break_writes: bool = False,
        speed: int = 0,
        driver: str = "auto",
        options: Optional[Mapping[str, Option]] = None,
    ) -> Job:
        """Copies the disk as it is when this returns to `target`, an image of the same size; None is as for `mirror`."""
        flags = lib.COWHAND_BACKUP_BREAK_WRITES if break_writes else 0
        return self._copy(lib.cowhand_backup, target, driver, options, copied, flags, speed)

    def _copy(
        self,
        begin: Any,
        target: Optional[PathLike],
        driver: str,
        options: Optional[Mapping[str, Option]],
        copied: str,
        flags: int,
        speed: int,
    ) -> Job:
        place = prepare(target, driver, options or {}, {})
        try:
            number = _COPIED[copied]
            return self._job(lambda job: begin(self._disk, place[0], number, flags, speed, job))
        finally:
            lib.cowhand_destroy(place)

    def _job(self, begin: Any) -> Job:
        job = ffi.new("cowhand_job **")
        check(begin(job))
        return Job(job)


def _extent(found: Any) -> Extent:
    flags = found.flags

    def has(flag: int) -> bool:
        return bool(flags & flag)

    return Extent(
        offset=found.offset,
        length=found.len,
        depth=found.depth,
        present=has(lib.COWHAND_EXTENT_PRESENT),
        data=has(lib.COWHAND_EXTENT_DATA),
        zero=has(lib.COWHAND_EXTENT_ZERO),
        hole=has(lib.COWHAND_EXTENT_HOLE),
        compressed=has(lib.COWHAND_EXTENT_COMPRESSED),
        file_offset=found.file_offset if has(lib.COWHAND_EXTENT_FILE_OFFSET) else None,
    )


def _snapshot(entry: Mapping[str, Any]) -> Snapshot:
    return Snapshot(
        id=entry["id"],
        name=entry["name"],
        taken=since_epoch(entry),
        vm_clock=timedelta(microseconds=entry["vm-clock-nsec"] // 1000),
        size=entry["size"],
    )
