"""Jobs on an open disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._call import check, ffi, lib


@dataclass(frozen=True)
class JobInfo:
    """How far a job is."""

    #: In QEMU's words: "running", "ready", "concluded" and others.
    status: str
    #: Bytes that are done, and that are to be done in all.
    done: int
    total: int
    #: Bytes a second at most; 0 is no limit.
    speed: int


class Job:
    """A job on a disk, which continues when this is dropped."""

    def __init__(self, place: Any) -> None:
        self._place = place

    def __del__(self) -> None:
        lib.cowhand_job_destroy(self._place)

    def info(self) -> JobInfo:
        """How far it is; of one that has ended, its end."""
        info = ffi.new("cowhand_job_info *")
        check(lib.cowhand_job_get_info(self._place[0], info))
        return JobInfo(ffi.string(info.status).decode(), info.done, info.total, info.speed)

    def wait_ready(self) -> None:
        """Blocks until the copy is in step with the disk, or the job has ended."""
        check(lib.cowhand_job_wait_ready(self._place[0]))

    def wait(self) -> None:
        """Blocks until it has ended; raises why it failed, or ECANCELED."""
        check(lib.cowhand_job_wait(self._place[0]))

    def complete(self) -> None:
        """Has the disk switch to the copy, of a job that is ready."""
        check(lib.cowhand_job_complete(self._place[0]))

    def cancel(self) -> None:
        """Has it end. A mirror that is ready leaves a whole copy."""
        check(lib.cowhand_job_cancel(self._place[0]))

    def pause(self) -> None:
        """Has it rest."""
        check(lib.cowhand_job_pause(self._place[0]))

    def resume(self) -> None:
        """Has it work again."""
        check(lib.cowhand_job_resume(self._place[0]))

    def set_speed(self, speed: int) -> None:
        """Sets its limit in bytes a second; 0 is none."""
        check(lib.cowhand_job_set_speed(self._place[0], speed))
