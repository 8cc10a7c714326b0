//! Each command that the server has, given by QEMU's own Python package.

use black_box::peer::assert_clean;
use black_box::{Moto, Run, cowhand};

use super::neighbours::python_packages;
use super::{Steered, create};

/// What every step of the script is made of.
const STEPS: &str = r#"
import asyncio, os, sys
from qemu.qmp import ExecuteError, QMPClient

path, folder = sys.argv[1:]
qmp = QMPClient("test")
given = set()

async def do(command, exactly={}, **arguments):
    given.add(command)
    arguments = {name.replace("_", "-"): value for name, value in arguments.items()}
    return await qmp.execute(command, {**exactly, **arguments})

async def until(job, *statuses):
    for _ in range(600):
        found = [found for found in await do("query-jobs") if found["id"] == job]
        if found and found[0]["status"] in statuses:
            assert "error" not in found[0], found
            return
        await asyncio.sleep(0.05)
    raise SystemExit(f"{job} is not {statuses}: {found}")

def file(name):
    return os.path.join(folder, name)

def image(name, **more):
    return {"driver": "qcow2", "node-name": name, "file": {"driver": "file", "filename": file(name)}, **more}

LIMITS = {"bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 40000, "iops_rd": 0, "iops_wr": 0}

async def ends(job):
    await until(job, "concluded")
    await do("job-dismiss", id=job)

async def starts(command, job, **arguments):
    "A job that stays when it has ended."
    await do(command, job_id=job, auto_dismiss=False, **arguments)
"#;

/// The commands, in an order in which each has something to do.
const SESSION: &str = r#"
async def questions():
    await do("query-version")
    await do("query-status")
    await do("query-qmp-schema")
    await do("query-block", names=["a"])
    await do("query-blockstats")
    await do("query-named-block-nodes")
    await do("x-query-throttle")
    await do("x-query-remotes")
    await do("x-debug-query-block-graph")

async def nodes_and_doors():
    await do("object-add", qom_type="throttle-group", id="g", limits={"iops-total": 50000})
    await do("qom-list", path="/objects")
    assert {"name": "throttle-group", "parent": "object"} in await do("qom-list-types", implements="user-creatable")
    assert {"name": "limits", "type": "struct"} in await do("qom-list-properties", typename="throttle-group")
    held = (await do("qom-list-get", paths=["/objects/g"]))[0]["properties"]
    assert any(one["name"] == "limits" and one["value"]["iops-total"] == 50000 for one in held)
    await do("qom-set", path="/objects/g", property="limits", value={"iops-total": 60000})
    assert (await do("qom-get", path="/objects/g", property="limits"))["iops-total"] == 60000
    await do("blockdev-create", job_id="make", options={"driver": "file", "filename": file("b"), "size": 0})
    await ends("make")
    await do("blockdev-add", {"driver": "file", "node-name": "b-file", "filename": file("b")})
    await do("blockdev-create", job_id="make", options={"driver": "qcow2", "file": "b-file", "size": 64 << 20})
    await ends("make")
    await do("block-set-write-threshold", node_name="b-file", write_threshold=1 << 30)
    await do("blockdev-del", node_name="b-file")
    await do("blockdev-add", image("b", active=False))
    await do("blockdev-set-active", node_name="b", active=True)
    await do("blockdev-add", {"driver": "throttle", "node-name": "t", "throttle-group": "g", "file": "b"})
    await do("block-export-add", type="nbd", id="e", node_name="t", writable=True)
    assert len(await do("query-block-exports")) == 2
    await do("block-export-del", id="e")
    await do("blockdev-del", node_name="t")
    await do("object-del", id="g")
    await do("nbd-server-stop")
    await do("nbd-server-start", addr={"type": "unix", "data": {"path": file("nbd")}})
    await do("nbd-server-add", device="a", writable=True)
    await do("nbd-server-remove", name="a")
    await do("nbd-server-add", device="a", writable=True)
    await do("block_set_io_throttle", LIMITS, id="a")
    await do("block-latency-histogram-set", id="a", boundaries=[1000, 1000000])
    await do("block_resize", node_name="b", size=128 << 20)
    await do("blockdev-reopen", options=[image("b", discard="unmap")])
    await do("x-blockdev-set", node_name="b", options="discard=ignore")
    await do("x-blockdev-set-iothread", node_name="b", iothread=None)
    await do("x-blockdev-amend", job_id="amend", node_name="b", options={"driver": "qcow2"})
    await ends("amend")
    for name in ("q0", "q1", "q2"):
        await do("blockdev-add", {"driver": "null-co", "node-name": name, "size": 1 << 20})
    await do("blockdev-add", {"driver": "quorum", "node-name": "q", "vote-threshold": 1, "children": ["q0", "q1", "q2"]})
    await do("x-blockdev-change", parent="q", child="children.2")
    await do("blockdev-del", node_name="q")

async def refused(command, **arguments):
    "Another name of the program does it."
    try:
        await do(command, **arguments)
    except ExecuteError:
        return
    raise SystemExit(f"{command} is not refused")

async def character_devices():
    null = {"type": "null", "data": {}}
    await refused("chardev-add", id="c", backend=null)
    await refused("chardev-change", id="c", backend=null)
    await refused("chardev-remove", id="c")
    await refused("chardev-send-break", id="c")
    assert await do("query-chardev") == []
    assert len(await do("query-chardev-backends")) == 5

async def descriptors():
    with open(file("c"), "r+b") as opened:
        qmp.send_fd_scm(opened.fileno())
        await do("add-fd", fdset_id=1)
        qmp.send_fd_scm(opened.fileno())
        await do("getfd", fdname="c")
    await do("closefd", fdname="c")
    assert len(await do("query-fdsets")) == 1
    await do("remove-fd", fdset_id=1)

async def bitmaps():
    for name in ("from", "to"):
        await do("block-dirty-bitmap-add", node="a", name=name)
    await do("block-dirty-bitmap-disable", node="a", name="from")
    await do("block-dirty-bitmap-enable", node="a", name="from")
    await do("x-block-dirty-bitmap-mark", node="a", name="from", ranges=[{"offset": 0, "length": 65536}])
    await do("block-dirty-bitmap-merge", node="a", target="to", bitmaps=["from"])
    assert (await do("x-block-dirty-bitmap-ranges", node="a", name="to"))["ranges"]
    await do("x-debug-block-dirty-bitmap-sha256", node="a", name="to")
    await do("block-dirty-bitmap-clear", node="a", name="to")
    await do("block-dirty-bitmap-remove", node="a", name="from")

async def snapshots():
    await do("blockdev-snapshot-internal-sync", device="a", name="s")
    await do("blockdev-snapshot-delete-internal-sync", device="a", name="s")
    await do("blockdev-snapshot-sync", node_name="a", snapshot_file=file("over"), snapshot_node_name="over")
    await do("blockdev-add", image("top", backing=None))
    await do("blockdev-snapshot", node="over", overlay="top")
    await do("change-backing-file", device="top", image_node_name="top", backing_file=file("over"))
    await do("transaction", actions=[
        {"type": "block-dirty-bitmap-add", "data": {"node": "top", "name": "with"}},
        {"type": "blockdev-snapshot-internal-sync", "data": {"device": "top", "name": "s"}},
    ])
    await starts("block-stream", "j", device="over")
    await ends("j")
    await starts("block-commit", "j", device="top")
    await until("j", "ready")
    await do("query-block-jobs")
    await do("job-pause", id="j")
    await do("job-resume", id="j")
    await do("block-job-pause", device="j")
    await do("block-job-resume", device="j")
    await do("block-job-set-speed", device="j", speed=1 << 30)
    await do("job-complete", id="j")
    await until("j", "concluded")
    await do("block-job-dismiss", id="j")

async def checkpoints():
    await do("blockdev-add", image("f"))
    await do("cowhand-checkpoint", node_name="f", name="two", labels=["owner=me"])
    await do("cowhand-fork", node_name="f", checkpoint="one", new=file("g"), count=2)
    assert (await do("cowhand-rollback", node_name="f", checkpoint="one"))["left"]
    assert len((await do("cowhand-log", node_name="f"))["layers"]) == 3
    await do("cowhand-diff", node_name="f", checkpoint="one", other="two", offset=0)
    assert (await do("cowhand-checkpoint-delete", node_name="f", checkpoints=["two"], dry_run=True))["needed"]
    assert (await do("cowhand-gc", node_name="f", unnamed=True, remove=True))["deleted"]
    await starts("cowhand-forget", "j", node_name="f", keep="last:9", max_depth=9)
    await ends("j")
    await starts("cowhand-publish", "j", node_name="f", checkpoint="one", target="s3://images/f")
    await ends("j")
    await starts("cowhand-push", "j", node_name="f", target="s3://images/pushed", compress="none", speed=1 << 30)
    await ends("j")
    await starts("cowhand-restore", "j", source="s3://images/f", new=file("restored"), serve={"type": "nbd"})
    await ends("j")
    await do("blockdev-del", node_name="f")

async def copies():
    for node in await do("query-block-exports"):
        disk = node["node-name"]
    await do("blockdev-add", image("c"))
    await starts("blockdev-backup", "j", device=disk, target="c", sync="full", auto_finalize=False)
    await until("j", "pending")
    await do("job-finalize", id="j")
    await ends("j")
    await starts("blockdev-backup", "j", device=disk, target="c", sync="full", auto_finalize=False)
    await until("j", "pending")
    await do("block-job-finalize", id="j")
    await ends("j")
    await starts("drive-backup", "j", device=disk, target=file("d"), sync="full", format="qcow2")
    await ends("j")
    await do("drive-mirror", job_id="j", device=disk, target=file("e"), sync="full", format="qcow2")
    await until("j", "ready")
    await do("block-job-cancel", device="j")
    while await do("query-jobs"):
        await asyncio.sleep(0.05)
    await starts("blockdev-mirror", "j", device=disk, target="c", sync="full")
    await until("j", "ready")
    await do("block-job-change", id="j", type="mirror", copy_mode="write-blocking")
    await do("job-cancel", id="j")
    await ends("j")
    await starts("blockdev-mirror", "j", device=disk, target="c", sync="full")
    await until("j", "ready")
    await do("block-job-complete", device="j")
    await ends("j")

async def main():
    await qmp.connect(path)
    # The package gives it when it connects.
    given.add("qmp_capabilities")
    for part in (questions, nodes_and_doors, character_devices, descriptors, bitmaps, snapshots, checkpoints, copies):
        await part()
    there = {command["name"] for command in await do("query-commands")}
    await do("quit")
    print(len(there), "commands; not given:", sorted(there - given), sorted(given - there))

asyncio.run(main())
"#;

#[test]
fn the_python_package_of_qemu_gives_each_command() {
    let store = Moto::start();
    store.put("/images", b"");
    let mut steered = Steered::started(|start| {
        let start = start.arg("--allow-connect").arg(format!("127.0.0.1:{}", store.port()));
        let start = start.env("AWS_ENDPOINT_URL", store.endpoint()).env("AWS_ACCESS_KEY_ID", "A");
        start.env("AWS_SECRET_ACCESS_KEY", "hush")
    });
    let images = ["c", "top", "f"].map(|name| create(&steered.scratch, name, "64M"));
    cowhand(["checkpoint", "-q", &images[2], "one"]).ok();
    let script = steered.scratch.write("session.py", format!("{STEPS}{SESSION}").as_bytes());
    let run = Run::new("/usr/bin/python3").arg(script).arg(&steered.qmp).arg(steered.scratch.path());
    let said = run.env("PYTHONPATH", python_packages()).limit(std::time::Duration::from_secs(60)).ok();
    let (count, rest) = said.trim().split_once(' ').expect("a number and words");
    assert_eq!(rest, "commands; not given: [] []");
    assert!(count.parse::<usize>().expect("a number") > 75, "{said}");
    assert!(steered.server.outcome().status.success());
    images.iter().for_each(|path| assert_clean(path.as_ref()));
}
