//! libblkio, by which QEMU's `-blockdev driver=virtio-blk-vhost-user` reaches a server: memory that both sides have, and answers.

use std::fs::{File, OpenOptions};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use blkio::Completion;
pub use blkio::{Blkio, Blkioq, ReqFlags};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Memory that both sides have, as a file.
#[derive(Debug)]
pub struct Shared {
    file: File,
    /// Where it is in ours.
    at: usize,
}

impl Shared {
    /// So many bytes of zeroes for a disk that is connected.
    pub fn new(disk: &mut Blkio, len: usize) -> Self {
        let region = disk.alloc_mem_region(len).expect("memory");
        disk.map_mem_region(&region).expect("the server takes it");
        let path = format!("/proc/self/fd/{}", region.fd);
        let file = OpenOptions::new().read(true).write(true).open(path).expect("memory");
        Self { file, at: region.addr }
    }

    /// Puts bytes there; gives the address that a request names.
    pub fn put(&self, at: usize, bytes: &[u8]) -> *mut u8 {
        self.file.write_all_at(bytes, at as u64).expect("memory");
        std::ptr::without_provenance_mut(self.at + at)
    }

    /// What is there.
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, at as u64).expect("memory");
        bytes
    }
}

/// Sends what was asked and waits for so many answers: what each says, by the numbers of the requests.
#[expect(unsafe_code, reason = "the library leaves answers in memory that it does not call filled")]
pub fn answers(queue: &mut Blkioq, count: usize) -> Vec<i32> {
    let mut completions: Vec<_> = (0..count).map(|_| MaybeUninit::<Completion>::uninit()).collect();
    let mut patience = PATIENCE;
    let done = queue.do_io(&mut completions, count, Some(&mut patience), None).expect("answers");
    assert_eq!(done, count, "answers are missing");
    // SAFETY: the library has filled as many as it says.
    let all = completions.iter().map(|completion| unsafe { completion.assume_init_ref() });
    let mut reported: Vec<_> = all.map(|completion| (completion.user_data, completion.ret)).collect();
    reported.sort_unstable();
    reported.into_iter().map(|(_, result)| result).collect()
}
