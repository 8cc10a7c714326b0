"""Checkpoints of a disk that is being served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from .qmp import Command, Server


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was taken."""

    name: str | None
    """Its name, if it has one."""
    id: str
    """The id of its layer, which names it, too."""


@dataclass(frozen=True)
class Difference:
    """A range in which two checkpoints may differ, in bytes."""

    start: int
    length: int


class Disk:
    """A disk of a lineage, by the name of its node."""

    def __init__(self, server: Server, node: str) -> None:
        self._server, self.node = server, node

    async def checkpoint(self, name: str | None = None, labels: Mapping[str, str] | None = None) -> Checkpoint:
        """Seals what the disk holds; clients wait for the switch alone. Durable when this returns."""
        action = self.checkpoint_action(name, labels)
        answer = await self._server.run(action)
        return Checkpoint(name, answer["id"])

    async def fork(
        self,
        checkpoint: str,
        new: str | Path,
        *,
        count: int | None = None,
        serve: str | Mapping[str, Any] | None = None,
    ) -> list[Path]:
        """Makes disks over a checkpoint; with `serve` (`"nbd"`, say) each is opened and exported at once. Returns their paths."""
        options = {"type": serve} if isinstance(serve, str) else serve
        command = self.fork_action(checkpoint, new, count=count)
        if options is not None:
            command.arguments["serve"] = dict(options)
        answer = await self._server.run(command)
        return [Path(path) for path in answer["disks"]]

    async def rollback(self, checkpoint: str, *, live: bool = False) -> str:
        """The disk continues from a checkpoint. Returns the id of the layer that it left.

        Refused while a client that may write is connected: its caches are of another disk then. `live` is for clients that have none.
        """
        answer = await self._server.run(self.rollback_action(checkpoint, live=live))
        return str(answer["left"])

    def checkpoint_action(self, name: str | None = None, labels: Mapping[str, str] | None = None) -> Command:
        """As `checkpoint`, for `Server.transaction`: several disks of one moment."""
        pairs = None if labels is None else [f"{key}={value}" for key, value in labels.items()]
        return Command("cowhand-checkpoint", node_name=self.node, name=name, labels=pairs)

    def fork_action(self, checkpoint: str, new: str | Path, *, count: int | None = None) -> Command:
        """As `fork`, for `Server.transaction`."""
        return Command("cowhand-fork", node_name=self.node, checkpoint=checkpoint, new=str(new), count=count)

    def rollback_action(self, checkpoint: str, *, live: bool = False) -> Command:
        """As `rollback`, for `Server.transaction`."""
        return Command("cowhand-rollback", node_name=self.node, checkpoint=checkpoint, live=live or None)

    async def log(self) -> list[dict[str, Any]]:
        """The layers and disks of the lineage, as `cowhand log --output json` has them."""
        found: list[dict[str, Any]] = []
        start: str | None = None
        while True:
            page = await self._server.execute("cowhand-log", {"from": start} if start else None, node_name=self.node)
            found += page.get("layers", []) + page.get("disks", [])
            start = page.get("next")
            if start is None:
                return found

    async def diff(self, checkpoint: str, other: str | None = None) -> AsyncIterator[Difference]:
        """Ranges that may differ between a checkpoint and another one, or the disk as it is: from maps alone."""
        offset: int | None = None
        while True:
            page = await self._server.execute(
                "cowhand-diff", node_name=self.node, checkpoint=checkpoint, other=other, offset=offset
            )
            for one in page["ranges"]:
                yield Difference(one["start"], one["length"])
            offset = page.get("next")
            if offset is None:
                return

    async def delete_checkpoints(self, *checkpoints: str, dry_run: bool = False) -> dict[str, Any]:
        """Deletes checkpoints; a layer that something is backed by stays, without a name. Returns what `cowhand checkpoint --delete --output json` shows."""
        answer: dict[str, Any] = await self._server.execute(
            "cowhand-checkpoint-delete", node_name=self.node, checkpoints=list(checkpoints), dry_run=dry_run or None
        )
        return answer

    async def collect(self, *, unnamed: bool = False, remove: bool = False) -> dict[str, Any]:
        """What `cowhand gc --output json` shows: layers that nothing needs, those that stay; with `remove` they are removed."""
        answer: dict[str, Any] = await self._server.execute(
            "cowhand-gc", node_name=self.node, unnamed=unnamed or None, remove=remove or None
        )
        return answer

    async def forget(
        self,
        *,
        keep: str | None = None,
        max_depth: int | None = None,
        max_waste: int | None = None,
        speed: int | None = None,
        save: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Forgets checkpoints that `keep` ("hourly:24,daily:7") and `max_depth` do not keep, and waits until layers are merged.

        Returns what `cowhand forget --output json` shows; with `dry_run` what it would be. `speed` is in bytes a second. With `save` the
        policy is the lineage's from then on: its servers follow it after each checkpoint, and so does who forgets without one.
        """
        policy = {"keep": keep, "max_depth": max_depth, "max_waste": max_waste, "speed": speed, "save": save or None}
        if dry_run:
            listed: dict[str, Any] = await self._server.execute(
                "cowhand-forget", node_name=self.node, dry_run=True, **policy
            )
            return listed
        answer, _ = await self._finished("forget", **policy)
        return answer

    async def publish(
        self,
        checkpoint: str,
        target: str,
        *,
        parent: str | None = None,
        chunk_size: int | None = None,
        compress: str | None = None,
        encrypt_key_secret: str | None = None,
        speed: int | None = None,
    ) -> str:
        """Uploads a checkpoint to `s3://BUCKET/FOLDER/NAME`, and waits for that. Returns the name that stays this checkpoint's.

        `parent` is an image of the folder of which unchanged chunks are taken, or "none"; otherwise one is found. `encrypt_key_secret`
        is the server's secret with the key of an encrypted image. `speed` is in bytes of the disk a second.
        """
        answer, _ = await self._finished(
            "publish",
            checkpoint=checkpoint,
            target=target,
            parent=parent,
            chunk_size=chunk_size,
            compress=compress,
            encrypt_key_secret=encrypt_key_secret,
            speed=speed,
        )
        return str(answer["image"])

    async def push(
        self,
        target: str,
        *,
        bitmap: str | None = None,
        chunk_size: int | None = None,
        compress: str | None = None,
        encrypt_key_secret: str | None = None,
        speed: int | None = None,
    ) -> dict[str, Any]:
        """Uploads the disk as it is now to `s3://BUCKET/FOLDER/NAME`, while clients write to it, and waits for that.

        Returns what `cowhand push --output json` shows of what was sent. With `bitmap` only what that says was changed since the last push
        is read; the rest is as in `publish`, and needs no checkpoint.
        """
        _, ended = await self._finished(
            "push",
            target=target,
            bitmap=bitmap,
            chunk_size=chunk_size,
            compress=compress,
            encrypt_key_secret=encrypt_key_secret,
            speed=speed,
        )
        outcome: dict[str, Any] = ended["x-outcome"]
        return outcome

    async def restore(
        self,
        source: str,
        new: str | Path,
        *,
        at: str | None = None,
        serve: str | Mapping[str, Any] | None = None,
        encrypt_key_secret: str | None = None,
        speed: int | None = None,
        whole: bool = False,
    ) -> str:
        """Makes this disk, the file `new`, of a published checkpoint. It is there at once, and a job fetches the rest; `whole` waits for that.

        With `serve` (`"nbd"`, say) it is exported. Returns the name of the image at the store.
        """
        job = self._new_job("restore")
        options = {"type": serve} if isinstance(serve, str) else serve
        started = self._server.execute(
            "cowhand-restore",
            source=source,
            new=str(new),
            node_name=self.node,
            job_id=job,
            at=at,
            serve=None if options is None else dict(options),
            encrypt_key_secret=encrypt_key_secret,
            speed=speed,
            auto_dismiss=False if whole else None,
        )
        answer = (await self._server.completed(job, started))[0] if whole else await started
        return str(answer["image"])

    async def _finished(self, verb: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begins a job of this disk, and waits for it. Returns the command's answer, and the job as it ended."""
        job = self._new_job(verb)
        started = self._server.execute(
            f"cowhand-{verb}", node_name=self.node, job_id=job, auto_dismiss=False, **arguments
        )
        return await self._server.completed(job, started)

    def _new_job(self, verb: str) -> str:
        """An id that no other job has, also of a client that has gone."""
        return f"{verb}-{self.node}-{token_hex(4)}"
