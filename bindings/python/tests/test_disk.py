"""Disks, used by threads that wait."""

import errno
import json
import os
import subprocess
import sys
import tempfile
import threading
import typing
import unittest
from datetime import datetime, timezone
from pathlib import Path

import cowhand
import cowhand.aio

SIZE = 64 << 20
EXAMPLES = Path(__file__).parent.parent / "examples"


class Scratch(unittest.TestCase):
    """A directory with an empty image."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.path = self.directory / "disk.qcow2"
        cowhand.create(self.path, SIZE)


class Disks(Scratch):
    def test_what_is_written_is_read_back_by_us_and_by_qemu(self) -> None:
        data = bytes(range(256)) * 1024
        with cowhand.open(self.path, cache="writeback") as disk:
            self.assertEqual(disk.size, SIZE)
            disk.write(512, data)
            disk.write(1 << 20, memoryview(data)[:1000], fua=True)
            buffer = bytearray(1000)
            disk.readinto(1 << 20, buffer)
            self.assertEqual(bytes(buffer), data[:1000])
            disk.flush()
            self.assertEqual(disk.read(512, len(data)), data)
        raw = self.directory / "disk.raw"
        subprocess.run(["qemu-img", "convert", "-O", "raw", self.path, raw], check=True)
        self.assertEqual(raw.read_bytes()[512 : 512 + len(data)], data)

    def test_a_failure_has_number_and_words(self) -> None:
        with cowhand.open(self.path, read_only=True) as disk:
            with self.assertRaises(cowhand.Error) as caught:
                disk.read(SIZE, 1)
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            self.assertIn("past the end of the disk", str(caught.exception))
            with self.assertRaises(OSError) as refused:
                disk.write(0, b"x")
            self.assertEqual(refused.exception.errno, errno.EROFS)
        with self.assertRaises(cowhand.Error) as caught:
            cowhand.open(self.directory / "none")
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        with self.assertRaises(cowhand.Error) as caught:
            cowhand.open(self.path, options={"l2-cache-sise": "1M"})
        self.assertIn("l2-cache-sise", str(caught.exception))
        with self.assertRaises(cowhand.Error) as caught:
            cowhand.create(self.path, SIZE)
        self.assertEqual(caught.exception.errno, errno.EEXIST)

    def test_a_disk_that_is_closed_is_an_error_and_can_be_opened_again(self) -> None:
        disk = cowhand.open(self.path)
        disk.close()
        disk.close()
        with self.assertRaises(cowhand.Error) as caught:
            disk.read(0, 1)
        self.assertEqual(caught.exception.errno, errno.EBADF)
        cowhand.open(self.path).close()

    def test_a_drive_is_opened_where_a_path_is_not_enough(self) -> None:
        """A description in JSON, as other programs have it, could not be opened."""
        with cowhand.open(self.path) as disk:
            disk.write(0, b"drive")
        file = {"driver": "file", "filename": str(self.path)}
        drive = "json:" + json.dumps({"driver": "qcow2", "file": file})
        copy = self.directory / "copy.qcow2"
        cowhand.create(copy, SIZE)
        with cowhand.open(drive=drive, read_only=True) as disk:
            self.assertEqual(disk.read(0, 5), b"drive")
            disk.backup(None, options={"drive": f"file={copy}"}).wait()
        with cowhand.open(copy) as disk:
            self.assertEqual(disk.read(0, 5), b"drive")
        with self.assertRaises(cowhand.Error) as caught:
            cowhand.open()
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        with self.assertRaises(cowhand.Error) as caught:
            cowhand.open(self.path, drive=drive)
        self.assertEqual(caught.exception.errno, errno.EINVAL)

    def test_an_encrypted_image_opens_with_the_secret_of_the_program(self) -> None:
        path = self.directory / "encrypted.qcow2"
        luks = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10"
        create = ["qemu-img", "create", "-q", "-f", "qcow2", "--object", "secret,id=s,data=hush", "-o", luks]
        made = False
        while not made:
            done = subprocess.run([*create, str(path), str(SIZE)], stderr=subprocess.PIPE, text=True)
            # Now and then the kernel's count of CPU time went back, and it is to be tried again.
            made = "Unable to get accurate CPU usage" not in done.stderr
        self.assertEqual(done.returncode, 0, done.stderr)
        options = {"encrypt.key-secret": "key"}
        with self.assertRaises(cowhand.Error):
            cowhand.open(path, options=options)
        cowhand.add_secret("key", b"hush")
        with self.assertRaises(cowhand.Error) as caught:
            cowhand.add_secret("key", "hush")
        self.assertEqual(caught.exception.errno, errno.EEXIST)
        with cowhand.open(path, options=options) as disk:
            disk.write(0, b"seven")
            cowhand.remove_secret("key")
            self.assertEqual(disk.read(0, 5), b"seven")
        with self.assertRaises(cowhand.Error) as caught:
            cowhand.remove_secret("key")
        self.assertEqual(caught.exception.errno, errno.ENOENT)

    def test_the_map_covers_the_disk_and_is_asked_for_step_by_step(self) -> None:
        with cowhand.open(self.path, discard=True) as disk:
            # More ranges than one call gives.
            for index in range(300):
                disk.write(index * 131072, b"x" * 65536)
            disk.write_zeroes(0, 65536, unmap=False)
            disk.discard(131072, 65536)
            extents = list(disk.map())
            self.assertEqual(sum(extent.length for extent in extents), SIZE)
            self.assertEqual(sum(extent.length for extent in extents if extent.data), 298 * 65536)
            for one, other in zip(extents, extents[1:]):
                self.assertEqual(one.offset + one.length, other.offset)
            self.assertTrue(extents[0].zero and extents[0].present and not extents[0].data)
            part = list(disk.map(262144, 65536))
            self.assertEqual([(extent.offset, extent.length) for extent in part], [(262144, 65536)])
            self.assertIsNotNone(part[0].file_offset)

    def test_the_chain_is_known_by_which_jobs_and_extents_count(self) -> None:
        overlay = self.directory / "overlay.qcow2"
        cowhand.create(overlay, SIZE, backing="disk.qcow2", backing_format="qcow2")
        with cowhand.open(overlay, discard=True) as disk:
            info = disk.info()
            self.assertEqual((info.driver, info.chain), ("qcow2", [str(overlay), str(self.path)]))
            self.assertEqual((info.size, info.read_only, info.discards), (SIZE, False, True))
            self.assertEqual(info.discard_alignment, 65536)
            self.assertLessEqual(info.request_alignment, info.optimal_io_alignment)
            disk.stream().wait()
            self.assertEqual(disk.info().chain, [str(overlay)])

    def test_snapshots_are_taken_listed_applied_and_deleted(self) -> None:
        with cowhand.open(self.path) as disk:
            disk.write(0, b"one")
            disk.create_snapshot("first")
            disk.write(0, b"two")
            (snapshot,) = disk.snapshots()
            self.assertEqual((snapshot.name, snapshot.size), ("first", SIZE))
            self.assertLess(abs((datetime.now(timezone.utc) - snapshot.taken).total_seconds()), 3600)
            disk.apply_snapshot("first")
            self.assertEqual(disk.read(0, 3), b"one")
            disk.delete_snapshot(snapshot.id)
            self.assertEqual(disk.snapshots(), [])

    def test_limits_figures_and_size(self) -> None:
        with cowhand.open(self.path, options={"throttling.iops-total": 5000}) as disk:
            self.assertEqual(disk.limits(), {"iops-total": 5000})
            disk.set_limits({"bps-read": 1 << 30, "bps-write": 1 << 30})
            self.assertEqual(disk.limits(), {"bps-read": 1 << 30, "bps-write": 1 << 30})
            disk.set_limits({})
            self.assertEqual(disk.limits(), {})
            disk.write(0, b"x" * 512)
            self.assertEqual(disk.statistics()["write"]["bytes"], 512)
            disk.resize(2 * SIZE)
            self.assertEqual(disk.size, 2 * SIZE)
            with self.assertRaises(cowhand.Error):
                disk.resize(SIZE)
            disk.resize(SIZE, shrink=True)

    def test_threads_use_one_disk_at_once(self) -> None:
        with cowhand.open(self.path) as disk:

            def work(number: int) -> None:
                for block in range(64):
                    disk.write((number * 64 + block) * 4096, bytes([number + 1]) * 4096)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for number in range(4):
                self.assertEqual(disk.read(number * 64 * 4096, 64 * 4096), bytes([number + 1]) * 64 * 4096)

    def test_jobs_copy_a_disk_in_use(self) -> None:
        backup, mirror = self.directory / "backup.qcow2", self.directory / "mirror.qcow2"
        cowhand.create(backup, SIZE)
        cowhand.create(mirror, SIZE)
        with cowhand.open(self.path) as disk:
            disk.write(0, b"before")
            job = disk.backup(backup)
            disk.write(0, b"after!")
            job.wait()
            self.assertEqual(job.info().status, "concluded")
            job = disk.mirror(mirror, speed=1, synchronous=True)
            with self.assertRaises(cowhand.Error) as caught:
                disk.stream()
            self.assertEqual(caught.exception.errno, errno.EBUSY)
            job.pause()
            self.assertEqual(job.info().speed, 1)
            job.resume()
            job.set_speed(0)
            job.wait_ready()
            job.complete()
            job.wait()
            job = disk.mirror(self.path, speed=1)
            job.cancel()
            with self.assertRaises(cowhand.Error) as caught:
                job.wait()
            self.assertEqual(caught.exception.errno, errno.ECANCELED)
            with self.assertRaises(KeyError):
                disk.backup(backup, copied="some")
        for path, text in ((backup, b"before"), (mirror, b"after!")):
            with cowhand.open(path) as disk:
                self.assertEqual(disk.read(0, 6), text)
        overlay = self.directory / "overlay.qcow2"
        cowhand.create(overlay, SIZE, backing="mirror.qcow2", backing_format="qcow2")
        with cowhand.open(overlay) as disk:
            disk.write(0, b"merged")
            job = disk.commit()
            job.wait_ready()
            job.complete()
            job.wait()
        with cowhand.open(mirror) as disk:
            self.assertEqual(disk.read(0, 6), b"merged")

    def test_checkpoints_are_taken_forked_rolled_back_and_merged(self) -> None:
        with cowhand.open(self.path) as disk:
            self.assertEqual(disk.checkpoints(), [])
            disk.write(0, b"first")
            taken = disk.checkpoint("one", {"os": "debian"})
            disk.write(0, b"later")
            with self.assertRaises(cowhand.Error) as caught:
                disk.checkpoint("one")
            self.assertEqual(caught.exception.errno, errno.EEXIST)
            self.assertEqual(list(disk.differences("one")), [cowhand.Difference(0, 65536, "shared", "data")])
            self.assertEqual(list(disk.differences("one", "one")), [])
            disk.fork("one", self.directory / "fork.qcow2", 2)
            with cowhand.open(self.directory / "fork-2.qcow2") as fork:
                self.assertEqual(fork.read(0, 5), b"first")
            left = disk.rollback(taken)
            self.assertEqual(disk.read(0, 5), b"first")
            one, other = disk.checkpoints()
            self.assertEqual((one.id, one.name, one.labels, other.id), (taken, "one", {"os": "debian"}, left))
            self.assertIn("fork-1.qcow2", one.users)
            self.assertLess(abs((datetime.now(timezone.utc) - one.taken).total_seconds()), 3600)
            self.assertEqual(disk.collect_layers(unnamed=True, list_only=True).layers, [left])
            self.assertEqual(disk.collect_layers(unnamed=True).layers, [left])
            for text in (b"two..", b"three"):
                disk.write(0, text)
                disk.checkpoint()
            listed = disk.forget(keep="last:1", list_only=True)
            self.assertIsNone(listed.job)
            forgotten = disk.forget(keep="last:1", save=True)
            self.assertEqual((forgotten.checkpoints, forgotten.merged), (listed.checkpoints, listed.merged))
            assert forgotten.job is not None
            forgotten.job.wait()
            disk.checkpoint()
            self.assertEqual(len(disk.forget(list_only=True).checkpoints), 1, "the policy is the lineage's")
            self.assertEqual(disk.read(0, 5), b"three")
            removed = disk.delete_checkpoint("one")
            self.assertEqual((removed.layers, list(removed.needed)), ([], [taken]))

    @unittest.skipUnless("AWS_ENDPOINT_URL" in os.environ, "there is no store")
    def test_a_checkpoint_is_published_and_a_disk_begins_as_it(self) -> None:
        name = "s3://images/vms/python"
        with cowhand.open(self.path) as disk:
            disk.write(0, b"first")
            taken = disk.checkpoint("one")
            disk.write(0, b"later")
            published = disk.publish("one", name, chunk_size=1 << 20)
            self.assertEqual((published.id, published.image), (taken, f"{name}@{taken}"))
            published.job.wait()
            with self.assertRaises(cowhand.Error) as caught:
                disk.publish("none", name)
            self.assertEqual(caught.exception.errno, errno.ENOENT)
        new = self.directory / "new.qcow2"
        restored = cowhand.restore(new, name, at="one")
        self.assertEqual((restored.image, restored.size), (published.image, SIZE))
        with cowhand.open(new, allow_name=restored.backing) as disk:
            self.assertEqual(disk.read(0, 5), b"first")
            disk.stream().wait()
        with cowhand.open(new) as disk:
            self.assertEqual(disk.read(0, 5), b"first")

    @unittest.skipUnless("AWS_ENDPOINT_URL" in os.environ, "there is no store")
    def test_a_disk_in_use_is_pushed_as_it_is(self) -> None:
        name = "s3://images/vms/python-pushed"
        subprocess.run(["qemu-img", "bitmap", "--add", self.path, "since"], check=True)

        def pushed() -> bytes:
            with cowhand.open(f"chunked:{name}", driver="raw", read_only=True) as image:
                self.assertEqual(image.size, SIZE)
                return image.read(0, 5)

        with cowhand.open(self.path) as disk:
            for chunk in range(4):
                disk.write(chunk << 20, b"first")
            job = disk.push(name, chunk_size=1 << 20, compress=False, speed=1)
            disk.write(0, b"later")
            with self.assertRaises(cowhand.Error) as caught:
                disk.push(name)
            self.assertEqual(caught.exception.errno, errno.EBUSY)
            job.set_speed(0)
            job.wait()
            self.assertEqual(pushed(), b"first")
            disk.push(name, bitmap="since").wait()
            self.assertEqual(pushed(), b"later")
            with self.assertRaises(cowhand.Error) as caught:
                disk.push(name, bitmap="none")
            self.assertEqual(caught.exception.errno, errno.ENOENT)
            self.assertIn("since", str(caught.exception))

    def test_the_example_lists_what_an_overlay_has_of_its_own(self) -> None:
        with cowhand.open(self.path) as disk:
            disk.write(0, b"x" * (1 << 20))
        overlay = self.directory / "overlay.qcow2"
        cowhand.create(overlay, SIZE, backing="disk.qcow2", backing_format="qcow2")
        with cowhand.open(overlay) as disk:
            disk.write(131072, b"y" * 65536)
            disk.write(196608, b"y" * 65536)
            disk.write_zeroes(524288, 65536, unmap=False)
        example = [sys.executable, str(EXAMPLES / "changed_blocks.py"), str(overlay)]
        printed = subprocess.run(example, check=True, capture_output=True, text=True).stdout
        self.assertEqual(printed, "131072 131072 data\n524288 65536 zeroes\n")

    def test_everything_that_is_public_has_types(self) -> None:
        for holder in (cowhand.Disk, cowhand.Checkpoint, cowhand.Job, cowhand.aio.Disk, cowhand.Extent, cowhand.Snapshot):
            for name, member in vars(holder).items():
                function = member.fget if isinstance(member, property) else member
                if callable(function) and not name.startswith("_"):
                    self.assertIn("return", typing.get_type_hints(function), f"{holder}.{name}")
        for function in (cowhand.open, cowhand.create, cowhand.restore, cowhand.version, cowhand.aio.open):
            self.assertIn("return", typing.get_type_hints(function))
        self.assertTrue((Path(cowhand.__file__).parent / "py.typed").exists())


if __name__ == "__main__":
    unittest.main()
