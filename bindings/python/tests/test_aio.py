"""Disks in asyncio's loop."""

import asyncio
import errno
import inspect
import os
import unittest
from typing import Any, Dict

import cowhand
import cowhand.aio
from test_disk import SIZE, Scratch


class Awaited(Scratch):
    def test_requests_run_side_by_side_and_more_than_the_queue_holds_wait(self) -> None:
        async def run() -> None:
            async with await cowhand.aio.open(self.path, discard=True) as disk:
                self.assertEqual(disk.size, SIZE)
                await asyncio.gather(*(disk.write(index * 4096, bytes([index % 251]) * 4096) for index in range(1000)))
                await disk.flush()
                read = await asyncio.gather(*(disk.read(index * 4096, 4096) for index in range(1000)))
                for index, data in enumerate(read):
                    self.assertEqual(data, bytes([index % 251]) * 4096)
                await disk.write_zeroes(0, 65536)
                await disk.discard(65536, 65536)
                self.assertEqual(await disk.read(0, 131072), bytes(131072))
                self.assertEqual(disk.blocking.statistics()["write"]["requests"], 1000)

        asyncio.run(run())

    def test_a_failed_request_raises_and_the_next_one_works(self) -> None:
        async def run() -> None:
            async with await cowhand.aio.open(self.path) as disk:
                with self.assertRaises(cowhand.Error) as caught:
                    await disk.read(SIZE, 512)
                self.assertEqual(caught.exception.errno, errno.EINVAL)
                self.assertIn("past the end", str(caught.exception))
                await disk.write(0, b"x", fua=True)
                self.assertEqual(await disk.read(0, 1), b"x")

        asyncio.run(run())

    def test_a_cancelled_task_leaves_its_request_running_and_its_buffer_alive(self) -> None:
        async def run() -> None:
            async with await cowhand.aio.open(self.path, options={"throttling.iops-total": 1}) as disk:
                tasks = [asyncio.ensure_future(disk.write(index * 512, b"y" * 512)) for index in range(16)]
                while disk.blocking.statistics()["write"]["in-flight"] == 0:
                    await asyncio.sleep(0)
                tasks[-1].cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await tasks[-1]
                disk.blocking.set_limits({})
                await asyncio.gather(*tasks[:-1])
            with cowhand.open(self.path) as again:
                self.assertEqual(again.read(0, 16 * 512), b"y" * 16 * 512)

        asyncio.run(run())

    def test_closing_waits_for_requests_and_refuses_later_ones(self) -> None:
        async def run() -> None:
            disk = await cowhand.aio.open(self.path)
            writes = [asyncio.ensure_future(disk.write(index << 16, b"z" * 65536)) for index in range(64)]
            await asyncio.sleep(0)
            await disk.close()
            await asyncio.gather(*writes)
            with self.assertRaises(cowhand.Error) as caught:
                await disk.read(0, 1)
            self.assertEqual(caught.exception.errno, errno.ESHUTDOWN)
            await disk.close()

        asyncio.run(run())


class Complete(Scratch):
    def test_each_call_that_blocks_has_one_that_is_awaited(self) -> None:
        def public(holder: Any) -> Dict[str, Any]:
            return {name: member for name, member in inspect.getmembers(holder) if not name.startswith("_")}

        def parameters(function: Any) -> Any:
            return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]

        compared = 0
        for blocking, awaited in [(cowhand.Disk, cowhand.aio.Disk), (cowhand.Job, cowhand.aio.Job), (cowhand, cowhand.aio)]:
            there = public(awaited)
            for name, member in public(blocking).items():
                if isinstance(member, property):
                    self.assertIsInstance(there[name], property, name)
                elif inspect.isfunction(member) and name not in ("version", "add_secret", "remove_secret"):
                    self.assertEqual(parameters(there[name]), parameters(member), name)
                    is_iterator = inspect.isgeneratorfunction(member)
                    self.assertEqual(inspect.iscoroutinefunction(there[name]), not is_iterator, name)
                    compared += 1
        self.assertGreater(compared, 35)

    def test_maps_snapshots_limits_and_checkpoints_are_awaited(self) -> None:
        async def run() -> None:
            fork = self.directory / "fork.qcow2"
            async with await cowhand.aio.open(self.path, discard=True) as disk:
                await disk.write(1 << 20, b"x" * 65536)
                await disk.create_snapshot("s")
                self.assertEqual([one.name for one in await disk.snapshots()], ["s"])
                self.assertEqual((await disk.info()).chain, [str(self.path)])
                data = [(one.offset, one.length) async for one in disk.map() if one.data]
                self.assertEqual(data, [(1 << 20, 65536)])
                await disk.delete_snapshot("s")
                await disk.set_limits({"iops-total": 5000})
                self.assertEqual((await disk.limits())["iops-total"], 5000)
                await disk.checkpoint("c")
                await disk.write(0, b"y" * 65536)
                self.assertEqual([one.offset async for one in disk.differences("c")], [0])
                await disk.fork("c", fork)
                await disk.rollback("c")
                self.assertEqual(await disk.read(0, 1), b"\0")
                forgotten = await disk.forget(keep="last:1")
                assert forgotten.job is not None
                await forgotten.job.wait()
                with self.assertRaises(cowhand.Error):
                    await disk.delete_snapshot("none")
            with self.assertRaises(cowhand.Error) as caught:
                await disk.snapshots()
            self.assertEqual(caught.exception.errno, errno.ESHUTDOWN)

        asyncio.run(run())

    @unittest.skipUnless("AWS_ENDPOINT_URL" in os.environ, "there is no store")
    def test_uploads_are_awaited(self) -> None:
        async def run() -> None:
            async with await cowhand.aio.open(self.path) as disk:
                await disk.write(0, b"x" * 65536)
                await disk.checkpoint("c")
                published = await disk.publish("c", "s3://images/vms/aio")
                await published.job.wait()
                await (await disk.push("s3://images/vms/aio-pushed")).wait()
            new = self.directory / "new.qcow2"
            restored = await cowhand.aio.restore(new, "s3://images/vms/aio")
            pushed = cowhand.aio.open("chunked:s3://images/vms/aio-pushed", driver="raw", read_only=True)
            for opening in (cowhand.aio.open(new, allow_name=restored.backing), pushed):
                async with await opening as disk:
                    self.assertEqual(await disk.read(0, 1), b"x")

        asyncio.run(run())

    def test_more_jobs_are_awaited_than_asyncio_has_threads(self) -> None:
        async def run() -> None:
            target = self.directory / "mirror.qcow2"
            await cowhand.aio.create(target, SIZE)
            async with await cowhand.aio.open(self.path) as disk:
                await disk.write(0, b"x" * 65536)
                job = await disk.mirror(target)
                await job.wait_ready()
                waits = [asyncio.ensure_future(job.wait()) for _ in range(64)]
                await asyncio.sleep(0)
                self.assertEqual((await job.info()).status, "ready")
                await job.complete()
                await asyncio.gather(*waits)
                await disk.write(0, b"y")
            with cowhand.open(target) as copy:
                self.assertEqual(copy.read(0, 2), b"yx")

        asyncio.run(run())


if __name__ == "__main__":
    unittest.main()
