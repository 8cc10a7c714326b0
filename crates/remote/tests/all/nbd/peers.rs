//! The contract of storage, kept over real servers: qemu-nbd and nbdkit, with blocks of several sizes.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use storage::{ExtentKind, Storage, Zeroing};

use crate::nbd::support::{Place, open, options, read, run, write};

const SIZE: u64 = 8 << 20;

struct Served {
    child: Child,
    place: Place,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(program: &str, arguments: impl Fn(&Path, &Path) -> Vec<String>) -> Served {
    let place = Place::new();
    let (image, socket) = (place.path("disk"), place.socket());
    std::fs::File::create(&image).unwrap().set_len(SIZE).unwrap();
    let mut command = Command::new(program);
    command.args(arguments(&image, &socket)).stdin(Stdio::null());
    let child =
        command.spawn().unwrap_or_else(|error| panic!("cannot run {program} (needed to test with): {error}"));
    let served = Served { child, place };
    let until = Instant::now() + Duration::from_secs(20);
    while !socket.exists() {
        assert!(Instant::now() < until, "{program} makes no socket");
        std::thread::sleep(Duration::from_millis(5));
    }
    served
}

fn words(words: &[&str], image: &Path, socket: &Path) -> Vec<String> {
    let shown = |path: &Path| path.display().to_string();
    let word = |word: &&str| word.replace("IMAGE", &shown(image)).replace("SOCKET", &shown(socket));
    words.iter().map(word).collect()
}

/// Runs `law` over servers that differ in what they can do.
fn on_all(law: impl AsyncFn(&dyn Storage)) {
    on_each(|options| run(async { law(&open(options).await).await }));
}

fn on_each(law: impl Fn(remote::nbd::Options)) {
    let servers: [(&str, &[&str]); 5] = [
        ("qemu-nbd", &["-f", "raw", "-t", "-e", "8", "--discard=unmap", "-k", "SOCKET", "IMAGE"]),
        ("qemu-nbd", &["-f", "raw", "-t", "--cache=none", "--aio=native", "-k", "SOCKET", "IMAGE"]),
        ("nbdkit", &["-f", "-U", "SOCKET", "file", "IMAGE"]),
        ("nbdkit", &["-f", "--no-sr", "-U", "SOCKET", "--filter=nozero", "file", "IMAGE"]),
        (
            "nbdkit",
            &[
                "-f",
                "-U",
                "SOCKET",
                "--filter=blocksize-policy",
                "file",
                "IMAGE",
                "blocksize-minimum=4096",
                "blocksize-maximum=64k",
                "blocksize-error-policy=error",
            ],
        ),
    ];
    for (program, arguments) in servers {
        let served = start(program, |image, socket| words(arguments, image, socket));
        law(options(&served.place.socket()));
    }
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) | 1).collect()
}

#[test]
fn what_is_written_is_read_back_wherever_it_begins() {
    on_all(async |storage| {
        let mut disk = vec![0; SIZE as usize];
        let ranges = [
            (0, 4096),
            (4096, 100),
            (100_000, 65536),
            (7, 3),
            (165_533, 9000),
            (1 << 20, 3 << 20),
            (SIZE - 1, 1),
        ];
        for (offset, len) in ranges {
            let data = bytes(len, offset as u8);
            write(storage, offset, &data).await.unwrap();
            disk[offset as usize..offset as usize + len].copy_from_slice(&data);
            assert_eq!(read(storage, offset, len).await.unwrap(), data);
        }
        storage.flush().await.unwrap();
        assert_eq!(read(storage, 0, SIZE as usize).await.unwrap(), disk);
        let behind = read(storage, SIZE - 512, 1024).await.unwrap();
        assert_eq!((&behind[..512], &behind[512..]), (&disk[SIZE as usize - 512..], &[0; 512][..]));
        assert_eq!(read(storage, SIZE * 2, 10).await.unwrap(), [0; 10]);
    });
}

#[test]
fn writes_of_parts_of_a_block_do_not_undo_each_other() {
    on_all(async |storage| {
        let writes = (0..64_u64)
            .map(|at| async move { write(storage, at * 100, &[at as u8 + 1; 100]).await.unwrap() });
        futures_util::future::join_all(writes).await;
        let expected: Vec<u8> = (0..6400).map(|at| (at / 100) as u8 + 1).collect();
        assert_eq!(read(storage, 0, 6400).await.unwrap(), expected);
    });
}

#[test]
fn a_zeroed_range_reads_as_zeroes_and_its_neighbours_keep_their_bytes() {
    on_all(async |storage| {
        for how in [Zeroing::Keep, Zeroing::Unmap, Zeroing::FastOnly] {
            let mut disk = bytes(300_000, 3);
            write(storage, 0, &disk).await.unwrap();
            for (offset, len) in [(0_u64, 10_u64), (65536, 65536), (5001, 12_345), (200_000, 99_999)] {
                match storage.zero(offset, len, how).await {
                    Ok(()) => disk[offset as usize..(offset + len) as usize].fill(0),
                    Err(error) => {
                        assert_eq!((how, error.kind()), (Zeroing::FastOnly, std::io::ErrorKind::Unsupported));
                    }
                }
            }
            assert_eq!(read(storage, 0, 300_000).await.unwrap(), disk);
        }
    });
}

#[test]
fn a_discard_touches_nothing_outside_and_an_extent_tells_no_hole_over_data() {
    on_all(async |storage| {
        write(storage, 0, &bytes(200_000, 9)).await.unwrap();
        storage.discard(1000, 100_000).await.unwrap();
        storage.discard(SIZE - 100, 1 << 30).await.unwrap();
        storage.discard(1 << 30, 4096).await.unwrap();
        assert_eq!(read(storage, 0, 1000).await.unwrap(), bytes(200_000, 9)[..1000]);
        assert_eq!(read(storage, 101_000, 99_000).await.unwrap(), bytes(200_000, 9)[101_000..]);
        write(storage, 4 << 20, &[1; 4096]).await.unwrap();
        let mut at = 0;
        while at < SIZE {
            let extent = storage.extent(at, SIZE).await.unwrap();
            if extent.kind == ExtentKind::Hole {
                assert!(read(storage, at, extent.len as usize).await.unwrap().iter().all(|&byte| byte == 0));
            }
            at += extent.len;
        }
        assert_eq!(at, SIZE);
        assert_eq!(storage.extent(4 << 20, 100).await.unwrap().kind, ExtentKind::Data);
    });
}

#[test]
fn an_export_keeps_its_length() {
    on_all(async |storage| {
        let refused = write(storage, SIZE - 100, &[1; 200]).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull);
        let refused = storage.grow_to(SIZE + 1).await.unwrap_err().to_string();
        assert_eq!(refused, format!("the export has {SIZE} bytes and cannot grow to {}", SIZE + 1));
        storage.grow_to(SIZE).await.unwrap();
        assert!(storage.shorten_to(SIZE - 1).await.is_err());
        assert!(!storage.capabilities().resizable);
    });
}

/// Loops that share a disk each have a connection, where the server lets them see one disk.
#[test]
fn requests_of_several_loops_see_one_disk() {
    on_each(|options| {
        run(async {
            let storage = Arc::new(open(options).await);
            let used = (0..4_u64).map(|thread| {
                let storage = Arc::clone(&storage);
                reactor::blocking(move || run(write_and_read(&*storage, thread * 200)))
            });
            futures_util::future::join_all(used).await;
            for at in 0..800_u64 {
                assert_eq!(read(&*storage, at * 4096, 1).await.unwrap(), [((at % 200) as u8) | 1]);
            }
        });
    });
}

async fn write_and_read(storage: &dyn Storage, first: u64) {
    for at in 0..200_u64 {
        let (offset, bytes) = ((first + at) * 4096, [(at as u8) | 1; 4096]);
        write(storage, offset, &bytes).await.unwrap();
        assert_eq!(read(storage, offset, 4096).await.unwrap(), bytes);
    }
    storage.flush().await.unwrap();
}
