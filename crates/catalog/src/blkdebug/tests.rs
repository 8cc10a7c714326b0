//! Rules reach an image: each step that can be named is one that an engine says, and nothing is lost whatever fails.

use std::ffi::OsStr;
use std::path::Path;

use ::storage::{IoBuf, IoBytes, IoVec, StepWatcher};
use block::pace::Unpaced;
use block::{Block, Hints, ZeroOptions};
use qcow2::snapshot::NewSnapshot;
use qcow2::{Compressing, CreateOptions, Repair, ResizeOptions};

use super::*;
use graph::drive::parse_drive;
use graph::options::DiskOptions;
use graph::{Disk, OpenRules, open};

/// So small that all tables outgrow their first place soon.
const CLUSTER_BYTES: usize = 512;

fn options(drive: &str) -> Result<DiskOptions, String> {
    let tree = parse_drive(OsStr::new(drive), |_| false).map_err(|error| error.to_string())?;
    DiskOptions::of_tree(tree).map_err(|error| error.to_string())
}

fn run<T>(future: impl Future<Output = T>) -> T {
    reactor::Reactor::new(reactor::Backend::Ring).unwrap().run(future)
}

#[test]
fn what_makes_no_rule_is_refused_by_name() {
    for (drive, refused) in [
        (
            "blkdebug:x",
            "option file.filename is \"blkdebug:x\"; allowed: blkdebug:CONFIG:FILE, or blkdebug::FILE",
        ),
        (
            "blkdebug:x:",
            "option file.filename is \"blkdebug:x:\"; allowed: blkdebug:CONFIG:FILE, or blkdebug::FILE",
        ),
        (
            "file.driver=blkdebug",
            "option file.image is \"\"; allowed: the path of a file, or options that name one",
        ),
        (
            "file.driver=blkdebug,file.image=x,file.locking=off",
            "option file.locking is for files of this machine, and driver blkdebug has none",
        ),
        (
            "file.driver=blkdebug,file.image=x,file.take-child-perms=write",
            "unknown option file.take-child-perms",
        ),
        (
            "file.driver=blkdebug,file.image=x,file.align=1000",
            "option file.align is \"1000\"; allowed: 0, or a power of two up to 1048576",
        ),
        (
            "file.driver=blkdebug,file.image=x,file.align=4k,file.max-transfer=5000",
            "option file.max-transfer is \"5000\"; allowed: multiples of 4096 up to 2147483647",
        ),
        (
            "file=blkdebug::x,file.inject-error.0.errno=5",
            "option file.inject-error.0.event is \"\"; allowed: it must be given",
        ),
        (
            "file=blkdebug::x,file.set-state.0.event=none",
            "option file.set-state.0.new_state is \"\"; allowed: it must be given",
        ),
        ("file=blkdebug::x,file.inject-error.1.event=none", "unknown option file.inject-error.1"),
        (
            "file=blkdebug::x,file.inject-error=none",
            "option file.inject-error is a list; give its parts, as NAME.0.OPTION=VALUE",
        ),
        (
            "file=blkdebug::x,file.inject-error.0.event=none,file.inject-error.0.errno=4096",
            "option file.inject-error.0.errno is \"4096\"; allowed: 0 to 4095",
        ),
        (
            "file=blkdebug::x,file.inject-error.0.event=none,file.inject-error.0.onec=on",
            "unknown option file.inject-error.0.onec; did you mean file.inject-error.0.once?",
        ),
    ] {
        assert_eq!(options(drive).map(drop), Err(refused.to_owned()), "{drive}");
    }
    let refused = options("file=blkdebug::x,file.inject-error.0.event=vmstate_load").unwrap_err();
    assert!(
        refused.starts_with("option file.inject-error.0.event is \"vmstate_load\"; allowed: l1_update, ")
    );
    let listed = r#"json:{"driver":"raw","file":{"driver":"blkdebug","image":{"driver":"file","filename":"x"},
        "inject-error":[{"event":"read_aio","errno":5,"once":true}],"set-state":[{"event":"none","new_state":2}]}}"#;
    let keyed = "driver=raw,file.driver=blkdebug,file.image.driver=file,file.image=x,file.inject-error.0.event=read_aio,\
        file.inject-error.0.once=on,file.set-state.0.event=none,file.set-state.0.new_state=2";
    assert_eq!(options(listed), options(keyed));
    assert!(options(listed).is_ok());
}

/// An image with a snapshot, over raw bytes; small clusters, so that every table grows when it is written.
async fn make(directory: &Path) {
    std::fs::write(directory.join("base"), vec![9; 1 << 20]).unwrap();
    let path = directory.join("image");
    std::fs::File::create(&path).unwrap();
    let created = CreateOptions {
        size: 1 << 20,
        cluster_size: CLUSTER_BYTES as u64,
        refcount_bits: 64,
        backing_file: Some("base".to_owned()),
        backing_format: Some("raw".to_owned()),
        ..CreateOptions::default()
    };
    let file = ::storage::FileStorage::open(&path, &::storage::FileOptions::default()).unwrap();
    qcow2::create(&file, None, &created).await.unwrap();
    drop(file);
    let disk = open(&DiskOptions::of_path(&path), &OpenRules::default()).await.unwrap();
    disk.write(0, IoVec::from(IoBytes::copy_from(&[7; 8192])), true, Hints::NONE).await.unwrap();
    disk.create_snapshot(NewSnapshot {
        name: "s".into(),
        date_sec: 0,
        date_nsec: 0,
        vm_clock_nsec: 0,
        icount: None,
    })
    .await
    .unwrap();
    disk.close().await.unwrap();
    disk.idle().await;
}

/// What an engine does with a raw disk.
async fn work_on_raw(disk: &Disk) -> Result<(), block::Error> {
    disk.zero(0, 4096, ZeroOptions { unmap: false, fast_only: false }, false, &Unpaced).await
}

/// Everything that an engine does, also after something failed; what failed first.
async fn work(disk: &Disk) -> Result<(), block::Error> {
    let mut result = Ok(());
    let bytes = |len: usize| IoVec::from(IoBytes::copy_from(&vec![3; len]));
    let read = |offset| async move { disk.read(offset, IoBuf::uninit(700), Hints::NONE).await.0.map(drop) };
    result = result.and(disk.write(100, bytes(100), false, Hints::NONE).await);
    result = result.and(read(0).await);
    result = result.and(read(900 << 10).await);
    result = result.and(disk.flush().await);
    let compressing = Compressing::new(disk.image().unwrap(), 1).unwrap();
    result = result.and(Block::write(&compressing, 512 << 10, bytes(4 * CLUSTER_BYTES), Hints::NONE).await);
    result = result.and(Block::flush(&compressing).await);
    result = result.and(read(512 << 10).await);
    result = result.and(disk.resize(8 << 20, ResizeOptions::default()).await);
    for offset in (1_u64 << 20..4 << 20).step_by(1 << 18) {
        result = result.and(disk.write(offset, bytes(1 << 18), false, Hints::NONE).await);
    }
    result = result.and(disk.flush().await);
    let zero = ZeroOptions { unmap: false, fast_only: false };
    result = result.and(disk.zero(1 << 20, 100, zero, false, &Unpaced).await);
    result = result.and(disk.discard(2 << 20, 1 << 20, false, &Unpaced).await);
    result = result.and(disk.flush().await);
    disk.idle().await;
    let snapshot =
        NewSnapshot { name: "t".into(), date_sec: 0, date_nsec: 0, vm_clock_nsec: 0, icount: None };
    result = result.and(disk.create_snapshot(snapshot).await.map(drop));
    result = result.and(disk.write(5 << 20, bytes(100), true, Hints::NONE).await);
    result = result.and(disk.close().await);
    disk.idle().await;
    result
}

#[test]
fn every_step_is_said_by_an_engine_and_a_failure_there_corrupts_nothing() {
    let mut unsaid = Vec::new();
    // The filter copy-on-read comes to that one.
    for (name, _) in Step::NAMED.into_iter().filter(|(name, _)| *name != "cor_write") {
        let directory = tempfile::tempdir().unwrap();
        let is_of_raw = name == "pwritev_zero";
        let (path, driver) = match is_of_raw {
            true => (directory.path().join("base"), "raw"),
            false => (directory.path().join("image"), "qcow2"),
        };
        let drive = format!(
            "driver={driver},discard=unmap,file.driver=blkdebug,file.image={},file.inject-error.0.event={name},file.inject-error.0.errno=28{}",
            path.display(),
            // Only such a file has parts of blocks written.
            if name.starts_with("pwritev_rmw") { ",file.align=4096" } else { "" },
        );
        let failed = run(async {
            make(directory.path()).await;
            let failed = match open(&options(&drive).unwrap(), &OpenRules::default()).await {
                Ok(disk) if is_of_raw => work_on_raw(&disk).await.err().map(|error| error.to_string()),
                Ok(disk) => work(&disk).await.err().map(|error| error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            let path = directory.path().join("image");
            let file = ::storage::FileStorage::open(&path, &::storage::FileOptions::default()).unwrap();
            let report = qcow2::check(&file, Repair::None, &mut |_| ()).await.unwrap();
            assert_eq!(report.corruptions, 0, "{name}: {failed:?}");
            failed
        });
        unsaid.extend(failed.is_none().then_some(name));
    }
    assert!(unsaid.is_empty(), "{unsaid:?}");
}

#[test]
fn a_name_leads_to_rules_in_a_file_and_the_image_keeps_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let (path, rules) = (directory.path().join("image"), directory.path().join("rules"));
    std::fs::write(&rules, "[inject-error]\nevent = \"read_aio\"\nerrno = \"5\"\nonce = \"on\"\n").unwrap();
    run(async {
        make(directory.path()).await;
        // The backing file's name is relative to the image's directory.
        let drive = format!("blkdebug:{}:{}", rules.display(), path.display());
        let disk = open(&options(&drive).unwrap(), &OpenRules::default()).await.unwrap();
        let read = |offset| disk.read(offset, IoBuf::uninit(512), Hints::NONE);
        assert_eq!(read(0).await.0.unwrap_err().raw_os_error(), Some(5));
        read(0).await.0.unwrap();
        let (result, buf) = read(900 << 10).await;
        result.unwrap();
        assert!(buf.iter().all(|byte| *byte == 9));
        disk.close().await.unwrap();
        drop(disk);
        std::fs::write(&rules, "[inject-error]\nevent = \"nonsense\"\n").unwrap();
        let refused = open(&options(&drive).unwrap(), &OpenRules::default()).await.unwrap_err().to_string();
        assert!(refused.contains("option inject-error.0.event is \"nonsense\"; allowed: "), "{refused}");
    });
}

#[test]
fn the_file_below_is_locked_as_without_rules() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    run(async {
        make(directory.path()).await;
        let disk =
            open(&options(&format!("blkdebug::{}", path.display())).unwrap(), &OpenRules::default()).await;
        let second = open(&DiskOptions::of_path(&path), &OpenRules::default()).await;
        assert!(second.unwrap_err().to_string().contains("image"));
        drop(disk);
    });
}

#[test]
fn a_request_is_held_back_until_it_is_resumed_or_dropped() {
    let below: Arc<dyn Storage> = Arc::new(::storage::MemoryStorage::from_bytes(&[0; 4096]));
    let blkdebug = Blkdebug::new(below, Rules::new(Vec::new()));
    run(async {
        blkdebug.set_breakpoint(Step::WriteAio, "A");
        ::storage::about_to(&blkdebug, Step::WriteAio);
        let mut write = blkdebug.write(0, IoVec::from(IoBytes::zeroed(512)), Hints::NONE);
        assert!(futures_util::poll!(&mut write).is_pending());
        assert_eq!(blkdebug.held_back(), ["A"]);
        blkdebug.read(0, IoBuf::uninit(512), Hints::NONE).await.0.unwrap();
        assert!(blkdebug.resume("A") && !blkdebug.resume("A"));
        write.await.unwrap();
        blkdebug.set_breakpoint(Step::WriteAio, "B");
        ::storage::about_to(&blkdebug, Step::WriteAio);
        let mut write = blkdebug.write(0, IoVec::from(IoBytes::zeroed(512)), Hints::NONE);
        assert!(futures_util::poll!(&mut write).is_pending());
        drop(write);
        assert!(blkdebug.held_back().is_empty());
        assert_eq!(blkdebug.requests().1, 0);
    });
}

/// An engine flushes also where nothing was written since: that counted as a step, and rules were a state ahead of where they are in QEMU.
#[test]
fn a_flush_with_nothing_to_flush_obeys_no_rule() {
    let inject =
        Inject { errno: 5, offset: None, io_type: None, once: false, immediately: true, delay_ns: 0 };
    let rules = vec![Rule { event: Step::FlushToDisk, state: 0, action: Action::Inject(inject) }];
    let below: Arc<dyn Storage> = Arc::new(::storage::MemoryStorage::from_bytes(&[0; 4096]));
    let blkdebug = Blkdebug::new(below, Rules::new(rules));
    let flush = async || {
        ::storage::about_to(&blkdebug, Step::FlushToDisk);
        blkdebug.flush().await
    };
    run(async {
        flush().await.unwrap();
        blkdebug.read(0, IoBuf::uninit(512), Hints::NONE).await.0.unwrap();
        blkdebug.write(0, IoVec::from(IoBytes::zeroed(512)), Hints::NONE).await.unwrap();
        assert_eq!(flush().await.unwrap_err().raw_os_error(), Some(5));
    });
}

/// QEMU's test 204 gave a disk limits that are no powers of two; ours were for the file below a disk only.
#[test]
fn a_disk_below_gets_requests_within_bounds_and_keeps_its_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    run(async {
        make(directory.path()).await;
        let drive = format!(
            "driver=blkdebug,image.driver=qcow2,image.file.filename={},align=4k,max-transfer=8k,opt-write-zero=12k,\
             max-write-zero=12k,opt-discard=12k,max-discard=12k",
            path.display()
        );
        let disk = open(&options(&drive).unwrap(), &OpenRules::default()).await.unwrap();
        let mut expected = vec![0; 64 << 10];
        let (result, held) = disk.read(0, IoBuf::uninit(expected.len()), Hints::NONE).await;
        result.unwrap();
        expected.copy_from_slice(&held);
        let zero = ZeroOptions { unmap: true, fast_only: false };
        for (offset, len) in [(1_000_usize, 30_000_usize), (5, 1), (40_000, 25_000), (0, 4096)] {
            let data = vec![len as u8 ^ 0x5a; len];
            disk.write(offset as u64, IoVec::from(IoBytes::copy_from(&data)), false, Hints::NONE)
                .await
                .unwrap();
            expected[offset..offset + len].copy_from_slice(&data);
            disk.zero(offset as u64 + 3, len as u64 / 2, zero, false, &Unpaced).await.unwrap();
            expected[offset + 3..offset + 3 + len / 2].fill(0);
        }
        let (result, found) = disk.read(0, IoBuf::uninit(expected.len()), Hints::NONE).await;
        result.unwrap();
        assert!(found[..] == expected[..]);
        let past = disk.read(1 << 20, IoBuf::uninit(1), Hints::NONE).await.0.unwrap_err();
        assert_eq!(past.kind(), block::ErrorKind::PastEnd);
        disk.close().await.unwrap();
    });
}
