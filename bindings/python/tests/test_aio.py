"""Disks in asyncio's loop."""

import asyncio
import errno
import unittest

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
                self.assertIn("past the end", caught.exception.strerror)
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


if __name__ == "__main__":
    unittest.main()
