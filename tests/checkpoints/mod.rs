//! Checkpoints of disks at work: taken, forked and rolled back under clients, killed at any moment, on a full file system.

#![forbid(unsafe_code)]

mod killed;
mod live;
mod meetings;
mod merged;
mod pictures;
mod python_client;
mod sealed;
mod served_forks;
mod together;

use std::path::Path;

use black_box::peer::{assert_clean, qemu_img, qemu_io_ok};
use black_box::server::Start;
use black_box::{Scratch, Server, cowhand};
use serde_json::Value;

/// A directory with a disk `d.qcow2` of 64 MiB, which has a checkpoint `first`.
struct Lineage {
    scratch: Scratch,
}

impl Lineage {
    fn new() -> Self {
        let lineage = Self { scratch: Scratch::new() };
        qemu_img(["create", "-q", "-f", "qcow2", &lineage.name("d.qcow2"), "64M"]).ok();
        cowhand(["checkpoint", "-q", &lineage.name("d.qcow2"), "first"]).ok();
        lineage
    }

    fn name(&self, file: &str) -> String {
        self.scratch.name(file)
    }

    /// Serves the disk in the sandbox, with nothing open to commands but the lineage.
    fn serve(&self) -> Server {
        self.serve_disk(&self.name("d.qcow2"))
    }

    fn serve_disk(&self, disk: &str) -> Server {
        self.serve_with(&[disk])
    }

    /// Serves what `arguments` say.
    fn serve_with(&self, arguments: &[&str]) -> Server {
        let start = Start::new(["--qmp", &self.name("qmp")]).args(arguments);
        let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
        server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
        server
    }

    fn log(&self) -> Value {
        cowhand(["log", "--output", "json", self.scratch.path().to_str().expect("text")]).json()
    }

    /// Every image passes QEMU's check, QEMU sees the chain that `log` shows, and each layer is as it was sealed.
    fn is_sound(&self) {
        let log = self.log();
        let list = |name: &str| log[name].as_array().expect("a list").clone();
        for layer in list("layers") {
            let file = layer["file"].as_str().expect("a path");
            assert_clean(Path::new(file));
            assert_eq!(layer.get("changed"), None, "{layer}");
            assert!(
                std::fs::metadata(file).expect("a layer").permissions().readonly(),
                "{file} can be written"
            );
        }
        for disk in list("disks") {
            let file = disk["file"].as_str().expect("a path");
            assert_clean(Path::new(file));
            let chain = qemu_img(["info", "--backing-chain", "--output=json", file]).json();
            let images = chain.as_array().expect("a chain").iter().skip(1);
            let ids: Vec<&str> = images
                .map(|image| {
                    Path::new(image["filename"].as_str().expect("a path")).file_stem().expect("a name")
                })
                .map(|stem| stem.to_str().expect("text"))
                .collect();
            let layers: Vec<&str> = disk["layers"]
                .as_array()
                .expect("ids")
                .iter()
                .map(|id| id.as_str().expect("an id"))
                .collect();
            assert_eq!(ids, layers, "{file}");
        }
    }

    fn reads(&self, file: &str, commands: &[&str]) {
        qemu_io_ok(&["-r", "-f", "qcow2"], &self.name(file), commands);
    }
}
