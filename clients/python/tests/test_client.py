"""Against a server: COWHAND_BIN names the program."""

import asyncio
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from cowhand_client import Closed, Command, QMPError, Server, connect

COWHAND = os.environ.get("COWHAND_BIN", "cowhand")
# A store without TLS that has the bucket "images", for the server and its credentials.
STORE = os.environ.get("AWS_ENDPOINT_URL")
MIB = 1 << 20


class Served(unittest.IsolatedAsyncioTestCase):
    """A directory with a disk of a lineage, and its server."""

    async def asyncSetUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.at = Path(directory.name)
        self.tool("create", "disk.qcow2", "64M")
        self.tool("checkpoint", "disk.qcow2", "empty")
        words = [COWHAND, "serve", "--socket", "disk.sock", "--qmp", "disk.qmp", "disk.qcow2"]
        if STORE is not None:
            words += ["--allow-connect", STORE.removeprefix("http://"), "--allow-path", "."]
        self.process = subprocess.Popen(words, cwd=self.at, stdout=subprocess.DEVNULL)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.terminate)
        while not (self.at / "disk.qmp").exists():
            self.assertIsNone(self.process.poll(), "the server has ended")
            await asyncio.sleep(0.01)
        self.server: Server = await connect(self.at / "disk.qmp")
        self.addAsyncCleanup(self.server.close)
        self.disk = self.server.disk("disk")

    def tool(self, *words: str) -> str:
        done = subprocess.run([COWHAND, *words], cwd=self.at, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout

    async def write(self, pattern: int, start: int, length: int) -> None:
        command = f"write -P {pattern} {start} {length}"
        words = ["qemu-io", "-f", "raw", "-c", command, "nbd+unix:///disk?socket=disk.sock"]
        process = await asyncio.create_subprocess_exec(*words, cwd=self.at, stdout=subprocess.DEVNULL)
        self.assertEqual(await process.wait(), 0)

    async def test_a_disk_is_checkpointed_forked_compared_and_rolled_back(self) -> None:
        await self.write(1, 0, MIB)
        done = await self.disk.checkpoint("installed", labels={"os": "debian"})
        await self.write(2, 4 * MIB, MIB)
        found = [(one.start, one.length) async for one in self.disk.diff("installed")]
        self.assertEqual(found, [(4 * MIB, MIB)])
        forks = await self.disk.fork("installed", self.at / "run.qcow2", count=3, serve="nbd")
        self.assertEqual([path.name for path in forks], ["run-1.qcow2", "run-2.qcow2", "run-3.qcow2"])
        exports = await self.server.execute("query-block-exports")
        self.assertEqual(sum(one["id"].startswith("run-") for one in exports), 3)
        left = await self.disk.rollback("installed")
        self.assertEqual([one async for one in self.disk.diff("installed")], [])
        layers = [one for one in await self.disk.log() if "id" in one]
        by_id = {one["id"]: one for one in layers}
        self.assertEqual((by_id[done.id]["name"], by_id[done.id]["labels"]), ("installed", {"os": "debian"}))
        self.assertIn(left, by_id)
        removed = await self.disk.collect(unnamed=True, remove=True)
        self.assertIn(left, str(removed["layers"]))
        kept = await self.disk.delete_checkpoints("installed", dry_run=True)
        self.assertEqual([one["id"] for one in kept["needed"]], [done.id])

    @unittest.skipIf(STORE is None, "AWS_ENDPOINT_URL names no store")
    async def test_a_checkpoint_is_published_and_a_disk_restored_of_it(self) -> None:
        await self.write(3, 0, MIB)
        await self.disk.checkpoint("installed")
        image = await self.disk.publish("installed", "s3://images/vms/disk", compress="none")
        self.assertEqual(image[:21], "s3://images/vms/disk@")
        copy = self.server.disk("copy")
        self.assertEqual(await copy.restore("s3://images/vms/disk", self.at / "copy.qcow2", serve="nbd", whole=True), image)
        exports = [one["id"] for one in await self.server.execute("query-block-exports")]
        self.assertIn("copy", exports)
        nodes = await self.server.execute("query-named-block-nodes", flat=True)
        self.assertNotIn("s3://", str(nodes))
        with self.assertRaises(QMPError) as failed:
            await self.disk.publish("installed", "s3://images/vms/disk", parent="s3://images/vms/none")
        self.assertIn("none.json is not there", str(failed.exception))

    @unittest.skipIf(STORE is None, "AWS_ENDPOINT_URL names no store")
    async def test_a_disk_is_pushed_while_it_is_served(self) -> None:
        await self.write(3, 0, MIB)
        first = await self.disk.push("s3://images/vms/pushed", chunk_size=MIB)
        self.assertEqual((first["chunks"], first["changed"]), (1, True))
        again = await self.disk.push("s3://images/vms/pushed")
        self.assertEqual((again["uploaded"], again["changed"]), (0, False))
        with self.assertRaises(QMPError):
            await self.disk.push("s3://images/vms/pushed", bitmap="none")

    @unittest.skipIf(STORE is None, "AWS_ENDPOINT_URL names no store")
    async def test_a_publication_that_is_given_up_is_in_the_way_of_no_other(self) -> None:
        for value in range(8):
            await self.write(value + 1, value * MIB, MIB)
        await self.disk.checkpoint("given-up")
        slowly = self.disk.publish("given-up", "s3://images/given-up", compress="none", speed=1)
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(slowly, 0.5)
        self.assertEqual(await self.server.execute("query-jobs"), [])
        await self.disk.publish("given-up", "s3://images/given-up")

    async def test_a_transaction_happens_as_a_whole_or_not_at_all(self) -> None:
        with self.assertRaises(QMPError) as failed:
            await self.server.transaction(self.disk.checkpoint_action("both"), Command("abort"))
        self.assertEqual(failed.exception.command, "transaction")
        names = [one.get("name") for one in await self.disk.log()]
        self.assertNotIn("both", names)
        await self.server.transaction(self.disk.checkpoint_action("both"))
        self.assertIn("both", [one.get("name") for one in await self.disk.log()])

    async def test_a_job_is_waited_for_and_its_events_are_seen(self) -> None:
        await self.write(1, 0, MIB)
        self.tool("create", "copy.qcow2", "64M")
        target = {"driver": "qcow2", "node-name": "copy", "file": {"driver": "file", "filename": str(self.at / "copy.qcow2")}}
        await self.server.execute("blockdev-add", target)
        async with self.server.events("JOB_STATUS_CHANGE") as events:
            await self.server.execute(
                "blockdev-backup", job_id="b", device="disk", target="copy", sync="full", auto_dismiss=False
            )
            last = await self.server.finished("b")
            seen = [await anext(events) for _ in range(2)]
        self.assertEqual((last["status"], last["type"]), ("concluded", "backup"))
        self.assertEqual([one.data["status"] for one in seen], ["created", "running"])
        self.assertGreater(seen[0].seconds, 1e9)

    async def test_answers_go_to_those_who_asked_and_names_are_qmps(self) -> None:
        asked = [self.server.execute("query-version"), self.server.execute("query-status-of-nothing")]
        version, unknown = await asyncio.gather(*asked, return_exceptions=True)
        self.assertEqual(version, self.server.version)
        assert isinstance(unknown, QMPError)
        self.assertEqual(unknown.error_class, "CommandNotFound")
        limits = {f"{unit}_{kind}": 0 for unit in ("bps", "iops") for kind in ("rd", "wr")} | {"bps": 0, "iops": 100}
        await self.server.execute("block_set_io_throttle", {"id": "disk", **limits})

    async def test_a_server_that_ends_leaves_nobody_waiting(self) -> None:
        async def wait() -> None:
            async with self.server.events() as events:
                async for _ in events:
                    pass

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        self.process.terminate()
        with self.assertRaises(Closed):
            await waiting
        with self.assertRaises(Closed):
            await self.server.execute("query-version")


if __name__ == "__main__":
    unittest.main()
