//! Block devices, for which a loop device stands in.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

use std::path::{Path, PathBuf};
use std::process::Command;

use reactor::{Backend, Reactor};
use storage::{ExtentKind, FileOptions, FileStorage, Hints, IoBuf, IoBytes, Storage, Zeroing};
use tempfile::TempDir;

const LENGTH: u64 = 8 << 20;

/// A loop device over a file; gone when dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn over(path: &Path, sector_bytes: u32) -> Self {
        std::fs::write(path, vec![0xaa; LENGTH as usize]).unwrap();
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(format!("--sector-size={sector_bytes}"))
            .arg(path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(String::from_utf8(output.stdout).unwrap().trim().into())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
#[ignore = "needs root and a loop device: cargo test -p cowhand-storage --test all device:: -- --ignored"]
fn a_block_device_reads_writes_zeroes_and_discards_but_never_grows() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (sector_bytes, direct) in [(512, false), (512, true), (4096, false), (4096, true)] {
        let device = LoopDevice::over(&dir.path().join("disk"), sector_bytes);
        let options = FileOptions { direct, read_only: false, no_flush: false, aio: Backend::Ring };
        let storage = FileStorage::open(&device.0, &options).unwrap();
        assert!(storage.is_device());
        assert_eq!(storage.length(), LENGTH);
        assert_eq!(storage.medium().logical_block_bytes, Some(sector_bytes));
        let capabilities = storage.capabilities();
        assert!(!capabilities.grows_zeroed && !capabilities.discards_to_zero && !capabilities.resizable);
        Reactor::new(Backend::Ring).unwrap().run(async {
            let read = async |offset: u64, len: usize| {
                let (result, buf) = storage.read(offset, IoBuf::zeroed(len), Hints::NONE).await;
                result.unwrap();
                buf
            };
            storage.write(0, IoBytes::copy_from(&vec![0xaa; 4 << 20]).into(), Hints::NONE).await.unwrap();
            storage.write(1000, IoBytes::copy_from(&[1; 10_000]).into(), Hints::NONE).await.unwrap();
            assert!(read(1000, 10_000).await.iter().all(|&byte| byte == 1));
            for how in [Zeroing::Keep, Zeroing::Unmap] {
                storage.zero(100_001, 300_000, how).await.unwrap();
                assert!(read(100_001, 300_000).await.iter().all(|&byte| byte == 0));
                assert_eq!((read(100_000, 1).await[0], read(400_001, 1).await[0]), (0xaa, 0xaa));
            }
            storage.discard(1 << 20, 1 << 20).await.unwrap();
            assert!(read(2 << 20, 4096).await.iter().all(|&byte| byte == 0xaa));
            let end = storage.write(LENGTH - 10, IoBytes::copy_from(&[1; 11]).into(), Hints::NONE).await;
            assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
            storage.write(LENGTH - 11, IoBytes::copy_from(&[1; 11]).into(), Hints::NONE).await.unwrap();
            assert!(storage.grow_to(LENGTH + 512).await.is_err());
            storage.grow_to(LENGTH).await.unwrap();
            let beyond = read(LENGTH - 11, 100).await;
            assert!(beyond[..11].iter().all(|&byte| byte == 1) && beyond[11..].iter().all(|&byte| byte == 0));
            assert_eq!(storage.extent(0, u64::MAX).await.unwrap().kind, ExtentKind::Data);
            storage.flush().await.unwrap();
        });
    }
}
