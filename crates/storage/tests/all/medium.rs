//! What a medium does: asked without touching it, learned by trying.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use reactor::{Backend, Reactor};
use storage::{
    Answer, DirectRequests, ExtentKind, FileOptions, FileStorage, Hints, IoBuf, IoBytes, Medium,
    MemoryStorage, Storage, Zeroing, ask_medium,
};
use tempfile::TempDir;

fn scratch() -> TempDir {
    TempDir::new_in(PathBuf::from(env!("CARGO_TARGET_TMPDIR"))).unwrap()
}

/// A file with a hole behind its first bytes.
fn sparse(path: &Path) {
    std::fs::write(path, [7; 65_536]).unwrap();
    File::options().write(true).open(path).unwrap().set_len(1 << 20).unwrap();
}

#[test]
fn asking_changes_nothing_of_a_file() {
    let dir = scratch();
    let path = dir.path().join("file");
    sparse(&path);
    let looked_at = || {
        let stat = std::fs::metadata(&path).unwrap();
        (stat.mtime(), stat.mtime_nsec(), stat.ctime(), stat.ctime_nsec(), stat.blocks(), stat.len())
    };
    let before = looked_at();
    let content = std::fs::read(&path).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let medium = ask_medium(&file, "file").unwrap();
    for direct in [false, true] {
        let options = FileOptions { direct, ..FileOptions::default() };
        if let Ok(storage) = FileStorage::open(&path, &options) {
            assert_eq!(storage.medium().file_system, medium.file_system);
        }
    }
    assert_eq!(looked_at(), before);
    assert!(std::fs::read(&path).unwrap() == content);
}

#[test]
fn what_only_trying_tells_is_reported_when_it_was_tried() {
    let dir = scratch();
    let path = dir.path().join("file");
    sparse(&path);
    let storage = FileStorage::open(&path, &FileOptions::default()).unwrap();
    let before = storage.medium();
    assert_eq!((before.punches_holes, before.zeroes_ranges), (Answer::NotTried, Answer::NotTried));
    Reactor::new(Backend::Ring).unwrap().run(async {
        storage.zero(0, 4096, Zeroing::Keep).await.unwrap();
        let zeroed = storage.medium();
        assert!(zeroed.zeroes_ranges != Answer::NotTried && zeroed.punches_holes == Answer::NotTried);
        storage.discard(8192, 4096).await.unwrap();
        assert_ne!(storage.medium().punches_holes, Answer::NotTried);
        let hole = storage.extent(1 << 19, 4096).await.unwrap();
        assert_eq!(storage.medium().tells_holes == Answer::Yes, hole.kind == ExtentKind::Hole);
    });
}

#[test]
fn a_hole_at_the_end_proves_that_holes_are_reported_and_data_proves_nothing() {
    let dir = scratch();
    let path = dir.path().join("file");
    let tells = || ask_medium(File::open(&path).unwrap(), "file").unwrap().tells_holes;
    std::fs::write(&path, b"").unwrap();
    assert_eq!(tells(), Answer::NotTried);
    std::fs::write(&path, [7; 65_536]).unwrap();
    assert_eq!(tells(), Answer::NotTried);
    sparse(&path);
    assert_eq!(tells(), Answer::Yes);
}

#[test]
fn a_direct_file_keeps_to_the_alignment_that_it_tells() {
    let dir = scratch();
    let path = dir.path().join("file");
    sparse(&path);
    let options = FileOptions { direct: true, ..FileOptions::default() };
    let storage = FileStorage::open(&path, &options).unwrap();
    let medium = storage.medium();
    let DirectRequests::Aligned { offset_bytes, .. } = medium.direct else { panic!("{medium:?}") };
    assert_eq!(offset_bytes, storage.capabilities().alignment);
    assert_eq!(medium.reads_without_waiting, Answer::NotTried, "there is no cache to read from");
    assert!(!storage.try_read(0, &mut [0; 512], Hints::NONE));
}

#[test]
fn what_lies_in_memory_is_read_where_it_is_asked_for() {
    // Kernels refuse to read such a file without waiting; a ring made its reads and its writes one after another.
    let dir = TempDir::new_in("/dev/shm").unwrap();
    let path = dir.path().join("file");
    sparse(&path);
    let storage = FileStorage::open(&path, &FileOptions::default()).unwrap();
    assert_eq!(storage.medium().file_system_name(), Some("tmpfs"));
    let mut bytes = [0; 512];
    assert!(storage.try_read(0, &mut bytes, Hints::NONE));
    assert_eq!(bytes[0], 7);
    Reactor::new(Backend::Ring).unwrap().run(async {
        let started = reactor::stats().started;
        let (result, bytes) = storage.read(0, IoBuf::zeroed(512), Hints::NONE).await;
        result.unwrap();
        assert_eq!((bytes[0], reactor::stats().started), (7, started));
    });
}

#[test]
fn a_pipe_is_no_medium_and_memory_says_nothing() {
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let error = ask_medium(&reader, "its name").unwrap_err();
    assert_eq!(error.to_string(), "its name is a pipe; storage must be a regular file or a block device");
    let memory = MemoryStorage::new(0);
    Reactor::new(Backend::Ring).unwrap().run(async {
        memory.write(0, IoBytes::copy_from(b"x").into(), Hints::NONE).await.unwrap();
    });
    assert_eq!(memory.medium(), Medium::default());
}
