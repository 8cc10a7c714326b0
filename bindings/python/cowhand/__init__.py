"""qcow2 and raw disks in process, through libcowhand.

Images stay plain: QEMU opens everything that is written here, and the reverse. The functions here block the calling
thread and may be called from any; `cowhand.aio` has the same for asyncio.
"""

from ._call import Error, version
from ._checkpoints import Checkpoint, Difference, Forgotten, Published, Removed, Restored, restore
from ._disk import Disk, Extent, Info, Snapshot, add_secret, create, open, remove_secret
from ._jobs import Job, JobInfo

__all__ = [
    "Checkpoint",
    "Difference",
    "Disk",
    "Error",
    "Extent",
    "Forgotten",
    "Info",
    "Job",
    "JobInfo",
    "Published",
    "Removed",
    "Restored",
    "Snapshot",
    "add_secret",
    "create",
    "open",
    "remove_secret",
    "restore",
    "version",
]
