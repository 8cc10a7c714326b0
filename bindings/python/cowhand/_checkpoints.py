"""Checkpoints of an open disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Dict, Generic, Iterator, List, Mapping, Optional, Tuple, TypeVar

from ._call import PathLike, check, ffi, lib, parsed, text_of
from ._jobs import Job

# A job that blocks, or that is awaited.
_J = TypeVar("_J")

# Ranges that one call of the library is asked for.
_RANGES = 256

_SAYS = {
    lib.COWHAND_DIFFERENCE_DATA: "data",
    lib.COWHAND_DIFFERENCE_ZERO: "zero",
    lib.COWHAND_DIFFERENCE_SHARED: "shared",
    lib.COWHAND_DIFFERENCE_NOTHING: "nothing",
}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a disk or of a fork, or a layer that stays because others need it."""

    id: str
    name: Optional[str]
    #: The file name of the disk that it was taken of.
    disk: str
    #: The layer that it is backed by.
    parent: Optional[str]
    taken: datetime
    labels: Dict[str, str]
    #: Bytes of the disk at that time, and those that its file takes.
    size: int
    allocated: int
    #: File names of disks and layers that are backed by it.
    users: List[str]
    #: It was deleted, and goes when nothing needs it.
    deleted: bool
    #: Why it cannot be used any more.
    changed: Optional[str]


@dataclass(frozen=True)
class Removed:
    """Layers that go, and deleted checkpoints whose layers stay."""

    layers: List[str]
    bytes: int
    #: The id of each, and the file names of what is backed by it.
    needed: Dict[str, List[str]]


@dataclass(frozen=True)
class Forgotten(Generic[_J]):
    """What a policy came to."""

    checkpoints: List[str]
    removed: Removed
    #: Each layer that gets what others have, and those.
    merged: Dict[str, List[str]]
    #: Layers that the disk is backed by where fewer were wanted.
    too_deep: Optional[int]
    #: Merges; None where all was only listed.
    job: Optional[_J]


@dataclass(frozen=True)
class Difference:
    """A range in which two disks may differ; each says "data", "zero", "shared" or "nothing" of it."""

    offset: int
    length: int
    checkpoint: str
    other: str


@dataclass(frozen=True)
class Published(Generic[_J]):
    """A checkpoint on its way to a store."""

    id: str
    #: The name in the store that stays this checkpoint's, once the job has ended.
    image: str
    #: Uploads.
    job: _J


@dataclass(frozen=True)
class Restored:
    """A disk that begins as a published checkpoint."""

    #: The name in the store that stays this checkpoint's.
    image: str
    #: The backing file of the disk: `open` needs it as `allow_name`.
    backing: str
    #: Bytes of the disk.
    size: int


def restore(path: PathLike, source: str, *, at: Optional[str] = None, key_secret: Optional[str] = None) -> Restored:
    """Makes a disk that begins as a published checkpoint (s3://BUCKET/FOLDER/NAME): what is read is fetched.

    `at` is one of the checkpoints below it. `Disk.stream` fetches the rest."""
    names = (source.encode(), _optional(at), _optional(key_secret))
    made = parsed(lib.cowhand_restore, os.fsencode(path), *names)
    return Restored(made["image"], made["backing"], made["size"])


class Checkpoints:
    """The checkpoints of a disk."""

    _disk: Any

    def checkpoint(self, name: Optional[str] = None, labels: Optional[Mapping[str, str]] = None) -> str:
        """Seals the disk as it is, while it is in use; it continues in a new overlay. Gives the id."""
        texts = [ffi.new("char[]", f"{key}={value}".encode()) for key, value in (labels or {}).items()]
        array = ffi.new("char *[]", texts)
        return text_of(lib.cowhand_checkpoint, self._disk, _optional(name), array, len(texts))

    def checkpoints(self) -> List[Checkpoint]:
        """All of the disk and its forks, the oldest first."""
        return [_checkpoint(entry) for entry in parsed(lib.cowhand_checkpoints, self._disk)]

    def rollback(self, checkpoint: str) -> str:
        """Has the disk continue from a checkpoint; gives the id of what it was. The guest must not use it meanwhile."""
        return text_of(lib.cowhand_rollback, self._disk, checkpoint.encode())

    def fork(self, checkpoint: str, path: PathLike, count: int = 0) -> None:
        """Makes a disk that begins as a checkpoint is, beside this one; or `count` with a number before the extension."""
        check(lib.cowhand_fork(self._disk, checkpoint.encode(), os.fsencode(path), count))

    def differences(self, checkpoint: str, other: Optional[str] = None) -> Iterator[Difference]:
        """Where a checkpoint and another one, or the disk, may differ, by their maps; asked for while it advances."""
        found, offset = ffi.new("cowhand_difference[]", _RANGES), 0
        names = (checkpoint.encode(), _optional(other))
        while True:
            count = check(lib.cowhand_differences(self._disk, *names, offset, found, _RANGES))
            # The array is filled again while the caller has what came before.
            ranges = [_difference(found[index]) for index in range(count)]
            if not ranges:
                return
            yield from ranges
            offset = ranges[-1].offset + ranges[-1].length

    def delete_checkpoint(self, checkpoint: str, *, list_only: bool = False) -> Removed:
        """Deletes a checkpoint; a layer that others need stays, without a name."""
        flags = lib.COWHAND_LIST_ONLY if list_only else 0
        return _removed(parsed(lib.cowhand_delete_checkpoint, self._disk, checkpoint.encode(), flags))

    def collect_layers(self, *, unnamed: bool = False, list_only: bool = False) -> Removed:
        """Removes layers that nothing needs any more; with `unnamed` also checkpoints without a name."""
        flags = lib.COWHAND_LIST_ONLY if list_only else 0
        flags |= lib.COWHAND_COLLECT_UNNAMED if unnamed else 0
        return _removed(parsed(lib.cowhand_collect_layers, self._disk, flags))

    def forget(
        self,
        *,
        keep: Optional[str] = None,
        max_depth: int = 0,
        max_waste: Optional[int] = None,
        speed: int = 0,
        list_only: bool = False,
        save: bool = False,
    ) -> Forgotten[Job]:
        """Forgets checkpoints that a policy ("hourly:24,daily:7") does not keep; a job merges layers under the disk.

        With `save` the policy is the lineage's from then on, and counts where none is given; an empty one takes it away.
        """
        job = ffi.NULL if list_only else ffi.new("cowhand_job **")
        waste = lib.COWHAND_ANY_WASTE if max_waste is None else max_waste
        flags = lib.COWHAND_SAVE_POLICY if save else 0
        policy = (_optional(keep), max_depth, waste, flags, speed)
        found = parsed(lib.cowhand_forget, self._disk, *policy, job)
        merged = {merge["into"]: merge["layers"] for merge in found["merged"]}
        begun = None if list_only else Job(job)
        return Forgotten(found["forgotten"], _removed(found), merged, found["too-deep"], begun)

    def publish(
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
    ) -> Published[Job]:
        """Uploads a checkpoint to s3://BUCKET/FOLDER/NAME as a job, while the disk is in use; only what the store lacks."""
        job = ffi.new("cowhand_job **")
        names = (checkpoint.encode(), target.encode(), _optional(parent), _optional(key_secret))
        how = (chunk_size, _upload_flags(compress, force), speed)
        made = parsed(lib.cowhand_publish, self._disk, *names, *how, job)
        return Published(made["id"], made["image"], Job(job))

    def push(
        self,
        target: str,
        *,
        bitmap: Optional[str] = None,
        key_secret: Optional[str] = None,
        chunk_size: int = 0,
        compress: bool = True,
        force: bool = False,
        speed: int = 0,
    ) -> Job:
        """Uploads the disk as it is when this returns to s3://BUCKET/FOLDER/NAME, while it is in use.

        With `bitmap`, which has recorded all changes since the last push there, only what that has as changed is read."""
        job = ffi.new("cowhand_job **")
        names = (target.encode(), _optional(bitmap), _optional(key_secret))
        how = (chunk_size, _upload_flags(compress, force), speed)
        check(lib.cowhand_push(self._disk, *names, *how, job))
        return Job(job)


def _optional(text: Optional[str]) -> Any:
    return ffi.NULL if text is None else ffi.new("char[]", text.encode())


def _upload_flags(compress: bool, force: bool) -> int:
    return (0 if compress else lib.COWHAND_PUBLISH_UNCOMPRESSED) | (lib.COWHAND_PUBLISH_FORCE if force else 0)


def _removed(found: Mapping[str, Any]) -> Removed:
    needed = {layer["id"]: layer["users"] for layer in found["needed"]}
    return Removed(found["layers"], found["bytes"], needed)


def _difference(found: Any) -> Difference:
    return Difference(found.offset, found.len, _SAYS[found.checkpoint], _SAYS[found.other])


def since_epoch(entry: Mapping[str, Any]) -> datetime:
    """When something was taken."""
    since = timedelta(seconds=entry["date-sec"], microseconds=entry["date-nsec"] // 1000)
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + since


def _checkpoint(entry: Mapping[str, Any]) -> Checkpoint:
    same: Tuple[str, ...] = ("id", "name", "disk", "parent", "labels", "size", "allocated", "users", "deleted", "changed")
    return Checkpoint(taken=since_epoch(entry), **{key: entry[key] for key in same})
