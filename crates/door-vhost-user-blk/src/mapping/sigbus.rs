//! A file of guest memory that becomes shorter under its mapping.
//!
//! The kernel's own copies then fail with EFAULT, which is an I/O error of that request. Our own accesses raise SIGBUS, which would end
//! the process, and with it all other guests. Files that can be sealed against shrinking are sealed ([`super::Mapping::new`]);
//! for the others (a file with a name, say) the handler here puts an empty page into the place that was lost: that guest has lost its
//! memory anyway. A fault anywhere else goes to the handler that was there before.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Ranges that are watched at a time: 16 guests with all the regions that one may have.
pub const MAPPINGS_MAX: usize = 4096;

/// One range as the handler sees it.
struct Slot {
    taken: AtomicBool,
    /// Zero: none.
    start: AtomicUsize,
    end: AtomicUsize,
    page: AtomicUsize,
    lost: AtomicBool,
}

impl Slot {
    const fn empty() -> Self {
        Self {
            taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }
}

static SLOTS: [Slot; MAPPINGS_MAX] = [const { Slot::empty() }; MAPPINGS_MAX];

/// The signal's handling before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A range that may be cut; watched until dropped.
#[derive(Debug)]
pub(super) struct Watched {
    slot: usize,
}

impl Watched {
    /// Watches `len` bytes of pages of `page` bytes; `None` if there are too many.
    ///
    /// # Errors
    /// When the signal cannot be handled.
    pub(super) fn new(start: NonNull<u8>, len: usize, page: usize) -> io::Result<Option<Self>> {
        install()?;
        let free =
            |slot: &Slot| !slot.taken.load(Ordering::Relaxed) && !slot.taken.swap(true, Ordering::Acquire);
        let Some(slot) = SLOTS.iter().position(free) else { return Ok(None) };
        let (own, address) = (&SLOTS[slot], start.as_ptr() as usize);
        own.lost.store(false, Ordering::Relaxed);
        own.page.store(page, Ordering::Relaxed);
        own.end.store(address + len, Ordering::Relaxed);
        // Last: from here on the handler knows it.
        own.start.store(address, Ordering::Release);
        Ok(Some(Self { slot }))
    }

    /// Whether a part was lost.
    pub(super) fn is_lost(&self) -> bool {
        SLOTS[self.slot].lost.load(Ordering::Relaxed)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let own = &SLOTS[self.slot];
        own.start.store(0, Ordering::Release);
        own.taken.store(false, Ordering::Release);
    }
}

/// Handles the signal from now on, once for the process.
fn install() -> io::Result<()> {
    static RESULT: OnceLock<i32> = OnceLock::new();
    match *RESULT.get_or_init(|| take_over().err().and_then(|error| error.raw_os_error()).unwrap_or(0)) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

fn take_over() -> io::Result<()> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is changed; the kernel fills `before`.
    check(unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) })?;
    // SAFETY: the call before has filled it.
    let _ = BEFORE.set(unsafe { before.assume_init() });
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeroes are a valid action: default handling, no flags, no signals blocked.
    let action = unsafe { action.assume_init_mut() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler makes only calls that a handler may make.
    check(unsafe { libc::sigaction(libc::SIGBUS, action, std::ptr::null_mut()) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes only system calls and atomic operations: it may interrupt anything.
extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid description of the fault.
    let info = unsafe { &*info };
    // SAFETY: this signal's description has an address.
    let address = unsafe { info.si_addr() } as usize;
    let found = SLOTS.iter().find(|slot| {
        let start = slot.start.load(Ordering::Acquire);
        start != 0 && address >= start && address < slot.end.load(Ordering::Relaxed)
    });
    let replaced = found.is_some_and(|slot| {
        slot.lost.store(true, Ordering::Relaxed);
        let page = slot.page.load(Ordering::Relaxed).max(1);
        replace(address - address % page, page)
    });
    if !replaced && let Some(before) = BEFORE.get() {
        // The access is tried again and fails again: then it is theirs.
        // SAFETY: the action is the one that was in force before ours.
        let _ = unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
    }
}

/// Puts an empty page in the place of one that has no file behind it any more.
fn replace(page: usize, len: usize) -> bool {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: the page lies in a mapping of ours that is watched, so still mapped.
    let mapped = unsafe { libc::mmap(page as *mut libc::c_void, len, access, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}
