//! What the page cache has of a file.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ptr::null_mut;

use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

/// Whether the byte at `offset` of `file`, which is open for reading, is in the page cache. Costs four system calls, and asks nothing of the
/// device where the caller owns the file or may write it. Another caller gets no answer: its read must not wait, but begins to bring the page in.
///
/// # Errors
/// When the file has no pages: a pipe, a directory.
pub fn is_cached(file: &File, offset: u64) -> io::Result<bool> {
    // A read that must not wait would be enough, were it not that a fast medium may have answered it before it is seen to wait.
    if !may_be_resident(file, offset)? {
        return Ok(false);
    }
    match preadv2(file, &mut [IoSliceMut::new(&mut [0])], offset, ReadWriteFlags::NOWAIT) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// What Linux says of the page at `offset`; yes to those it does not tell.
fn may_be_resident(file: &File, offset: u64) -> io::Result<bool> {
    let len = page_size();
    let start = offset / len as u64 * len as u64;
    // SAFETY: a new mapping of no given place touches no memory that is in use, and no process reads or writes it.
    let page = unsafe { mmap(null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, start) }?;
    let mut reported = 0_u8;
    // SAFETY: `page` is mapped and one page long, for which one byte is written.
    let asked = unsafe { libc::mincore(page, len, &raw mut reported) };
    let asked = if asked == 0 { Ok(reported & 1 == 1) } else { Err(io::Error::last_os_error()) };
    // SAFETY: it is the mapping of above, and nothing points to it.
    unsafe { munmap(page, len) }?;
    asked
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::fs::{Advice, fadvise};

    use super::*;

    const LEN: u64 = 64 << 20;

    /// A file of which nothing is cached; `None` where files are in memory.
    fn cold() -> Option<File> {
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.write_all_at(&vec![1; LEN as usize], 0).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let in_memory = is_cached(&file, 0).unwrap();
        if in_memory {
            eprintln!("not tried: files of /var/tmp are in memory");
        }
        (!in_memory).then_some(file)
    }

    #[test]
    fn what_was_read_is_cached_until_it_is_let_go() {
        let Some(file) = cold() else { return };
        fadvise(&file, 0, None, Advice::Random).unwrap();
        file.read_exact_at(&mut [0], LEN / 2 + 5).unwrap();
        assert!(is_cached(&file, LEN / 2).unwrap() && is_cached(&file, LEN / 2 + 4095).unwrap());
        assert!(!is_cached(&file, LEN / 2 - 1).unwrap() && !is_cached(&file, LEN - 1).unwrap());
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        assert!(!is_cached(&file, LEN / 2).unwrap());
    }

    #[test]
    fn looking_brings_nothing_in() {
        let Some(file) = cold() else { return };
        for _ in 0..3 {
            for at in (0..LEN).step_by(1 << 20) {
                assert!(!is_cached(&file, at).unwrap(), "{at}");
            }
        }
    }

    #[test]
    fn what_has_no_pages_is_an_error() {
        assert!(is_cached(&File::open("/").unwrap(), 0).is_err());
    }
}
