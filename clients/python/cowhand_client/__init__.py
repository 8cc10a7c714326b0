"""Controls a cowhand server, or qemu-storage-daemon, over QMP.

    async with await connect("disk.qmp") as server:
        disk = server.disk("disk")
        done = await disk.checkpoint("installed", labels={"os": "debian"})
        await disk.fork("installed", "run.qcow2", count=10)
"""

from .disk import Checkpoint, Disk, Difference
from .qmp import Closed, Command, Event, QMPError, Server, connect

__all__ = ["Checkpoint", "Closed", "Command", "Difference", "Disk", "Event", "QMPError", "Server", "connect"]
