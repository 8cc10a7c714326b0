//! Clients that others wrote: the qemu.qmp package, and socat with what people type.

use std::path::PathBuf;

use black_box::Run;
use serde_json::{Value, json};

use super::Steered;

/// Where `cargo xtask test` puts Python packages that Debian does not have.
pub(super) fn python_packages() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("python")
}

/// A session as a management program has it: events, errors, commands that overlap.
const SCRIPT: &str = r#"
import asyncio, sys
from qemu.qmp import QMPClient, ExecuteError

async def main(path):
    qmp = QMPClient("test")
    await qmp.connect(path)
    assert qmp.greeting.QMP.version["package"].startswith("cowhand"), qmp.greeting
    names = [command["name"] for command in await qmp.execute("query-commands")]
    assert "blockdev-add" in names and "qmp_capabilities" in names, names
    assert (await qmp.execute("query-status"))["status"] == "running"
    try:
        await qmp.execute("nonsense", {"a": 1})
        raise SystemExit("no error")
    except ExecuteError as error:
        assert error.error_class == "CommandNotFound", error
    results = await asyncio.gather(*[qmp.execute("query-block") for _ in range(50)])
    assert all(len(result) == 1 for result in results)
    await qmp.execute("block-export-del", {"id": "a", "mode": "hard"})
    with qmp.listener("SHUTDOWN") as events:
        await qmp.execute("quit")
        event = await asyncio.wait_for(events.get(), 20)
        assert event["data"]["reason"] == "host-qmp-quit", event
    print("done")

asyncio.run(main(sys.argv[1]))
"#;

#[test]
fn the_python_package_of_qemu_works() {
    let mut steered = Steered::new();
    let script = steered.scratch.write("session.py", SCRIPT.as_bytes());
    let run = Run::new("/usr/bin/python3").arg(script).arg(&steered.qmp);
    let said = run.env("PYTHONPATH", python_packages()).ok();
    assert_eq!(said.trim(), "done");
    assert!(steered.server.outcome().status.success());
}

#[test]
fn a_session_that_is_typed_works() {
    let mut steered = Steered::new();
    let typed = "\
        { 'execute': 'qmp_capabilities' }\n\
        oops\n\
        { 'execute': 'query-block-exports', 'id': 'x' }\n\
        {'execute':'quit'}";
    let address = format!("UNIX-CONNECT:{}", steered.qmp.display());
    let said = Run::new("socat").args(["-t20", "-", &address]).input(typed).ok();
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines[0]["QMP"].is_object(), "{said}");
    assert_eq!(lines[1], json!({ "return": {} }));
    assert_eq!(lines[2]["error"]["class"], "GenericError");
    assert_eq!((&lines[3]["id"], &lines[3]["return"][0]["name"]), (&json!("x"), &json!("a")));
    assert_eq!(lines[4], json!({ "return": {} }));
    assert_eq!(lines[5]["event"], "SHUTDOWN");
    assert!(steered.server.outcome().status.success());
}
