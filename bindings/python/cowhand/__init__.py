"""qcow2 and raw disks in process, through libcowhand.

Images stay plain: QEMU opens everything that is written here, and the reverse. The functions here block the calling
thread and may be called from any; `cowhand.aio` has the same for asyncio.
"""

from ._call import Error, version
from ._disk import Disk, Extent, Job, JobInfo, Snapshot, create, open

__all__ = ["Disk", "Error", "Extent", "Job", "JobInfo", "Snapshot", "create", "open", "version"]
