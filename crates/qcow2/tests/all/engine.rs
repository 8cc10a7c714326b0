//! The engine against images that qemu-img makes, with qemu-img as the judge.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use crate::on_reactor;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use on_reactor::{Loop, reactor_run};
use qcow2::{Files, Options, Qcow2, ZeroOptions};
use storage::{FileOptions, FileStorage, Hints, IoBuf, IoBytes, IoVec};

fn qemu_img(args: &[&str]) {
    let output = Command::new("qemu-img").args(args).output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "qemu-img {args:?}: {said}");
}

async fn open(path: &Path) -> Qcow2 {
    let file = FileStorage::open(path, &FileOptions::default()).unwrap();
    let files = Files { file: Arc::new(file), data: None, backing: None };
    let options = Options { writable: true, discard: true, ..Options::default() };
    Qcow2::open(files, options, Arc::new(Loop)).await.unwrap()
}

/// xorshift: a test needs numbers that look random and are the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn random_requests_read_back_and_leave_an_image_that_qemu_finds_clean() {
    let directory = tempfile::tempdir().unwrap();
    let options = [
        "cluster_size=64k",
        "cluster_size=512",
        "cluster_size=4k,refcount_bits=1",
        "cluster_size=2M",
        "cluster_size=64k,extended_l2=on",
        "cluster_size=16k,extended_l2=on,refcount_bits=64",
        "cluster_size=64k,lazy_refcounts=on",
        "cluster_size=1k,compat=0.10",
    ];
    for (index, create) in options.iter().enumerate() {
        let path = directory.path().join(format!("{index}.qcow2"));
        let name = path.to_str().unwrap();
        let size = 5 << 20;
        qemu_img(&["create", "-q", "-f", "qcow2", "-o", create, name, &size.to_string()]);
        let model = reactor_run(async {
            let image = open(&path).await;
            let mut model = vec![0u8; size as usize];
            let mut random = Random(index as u64 + 7);
            for step in 0..400u64 {
                let offset = random.below(size);
                let scale = random.below(18);
                let len = (random.below(1 << scale) + 1).min(size - offset);
                let range = offset as usize..(offset + len) as usize;
                match random.below(10) {
                    0..5 => {
                        let byte = step as u8 | 1;
                        let data = IoBytes::copy_from(&vec![byte; len as usize]);
                        image.write(offset, IoVec::from(data), Hints::NONE).await.unwrap();
                        model[range].fill(byte);
                    }
                    5 => {
                        let unmap = random.below(2) == 0;
                        image.zero(offset, len, ZeroOptions { unmap, fast_only: false }).await.unwrap();
                        model[range].fill(0);
                    }
                    6 => {
                        image.discard(offset, len).await.unwrap();
                        let cluster = image.geometry().cluster_size();
                        let start = offset.next_multiple_of(cluster);
                        let end = (offset + len) / cluster * cluster;
                        if start < end {
                            model[start as usize..end as usize].fill(0);
                        }
                    }
                    7 => image.flush().await.unwrap(),
                    _ => {
                        let (result, buf) =
                            image.read(offset, IoBuf::uninit(len as usize), Hints::NONE).await;
                        result.unwrap();
                        assert!(buf[..] == model[range], "{create}: step {step}, {len} bytes at {offset}");
                    }
                }
            }
            image.close().await.unwrap();
            model
        });
        qemu_img(&["check", "-q", name]);
        let raw = directory.path().join("raw");
        std::fs::write(&raw, &model).unwrap();
        qemu_img(&["compare", "-q", "-f", "qcow2", "-F", "raw", name, raw.to_str().unwrap()]);
    }
}
