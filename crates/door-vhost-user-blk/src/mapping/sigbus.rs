//! Guest memory that is lost under its mapping: its file becomes shorter, or the machine's memory fails.
//!
//! The kernel's own copies then fail with EFAULT, which is an I/O error of that request. Our own accesses raise SIGBUS, which would end
//! the process, and with it all other guests. Files that can be sealed against shrinking are sealed ([`super::Mapping::new`]). For all
//! others the handler here marks the range as lost and puts one mapping of empty memory over all of it, whatever page was touched: a
//! range costs one mapping, lost or not, so that no number of lost pages exhausts the mappings that a process may have. Nothing that is
//! read of a lost range is passed on: who copies looks at the mark afterwards, and the guest's queues stop.
//!
//! A fault anywhere else goes to the handler that was there before.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use crate::limits::RANGES_MAX_IN_ALL;

/// One range as the handler sees it.
struct Slot {
    taken: AtomicBool,
    /// Odd while the bounds are being changed. A reader that finds the same even number before and after has bounds that belong together.
    version: AtomicUsize,
    /// Zero: none.
    start: AtomicUsize,
    end: AtomicUsize,
    page: AtomicUsize,
    lost: AtomicBool,
}

/// The bounds of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bounds {
    start: usize,
    end: usize,
    page: usize,
}

impl Slot {
    const fn empty() -> Self {
        Self {
            taken: AtomicBool::new(false),
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }

    fn set(&self, bounds: Bounds) {
        // Only the owner of a taken slot changes it.
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(bounds.start, Ordering::Relaxed);
        self.end.store(bounds.end, Ordering::Relaxed);
        self.page.store(bounds.page, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The bounds, if `address` lies inside. A range that is being changed has no user yet, or none any more: the fault is not its own.
    fn around(&self, address: usize) -> Option<Bounds> {
        let version = self.version.load(Ordering::Acquire);
        let [start, end, page] =
            [&self.start, &self.end, &self.page].map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        let found = is_whole && start != 0 && (start..end).contains(&address);
        found.then_some(Bounds { start, end, page })
    }
}

static SLOTS: [Slot; RANGES_MAX_IN_ALL] = [const { Slot::empty() }; RANGES_MAX_IN_ALL];

/// Whether any range was ever lost: most processes never look further.
static ANY_LOST: AtomicBool = AtomicBool::new(false);

/// The signal's handling before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Whether any range of this process was lost since it began.
pub(crate) fn is_any_lost() -> bool {
    ANY_LOST.load(Ordering::Relaxed)
}

/// A range that may be lost; watched until dropped.
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
        own.set(Bounds { start: address, end: address + len, page });
        Ok(Some(Self { slot }))
    }

    /// Whether a part was lost.
    pub(super) fn is_lost(&self) -> bool {
        is_any_lost() && SLOTS[self.slot].lost.load(Ordering::Relaxed)
    }
}

/// The range is not touched any more when this is dropped, and it is still mapped: once it is unmapped its addresses may belong to
/// another mapping, whose faults are not ours.
impl Drop for Watched {
    fn drop(&mut self) {
        let own = &SLOTS[self.slot];
        own.set(Bounds::default());
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

/// What a signal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The range in this slot is lost.
    Lost { slot: usize, bounds: Bounds },
    /// Other memory failed, and no thread accessed it: nothing has to be done.
    Report,
    /// An access to other memory failed: that is for the handler before ours.
    Foreign,
}

/// The cause of a signal with this code (sigaction(2), `si_code`) and this address.
///
/// A range is lost whatever the code is: its file was cut (BUS_ADRERR), an access found memory that failed (BUS_MCEERR_AR), or the kernel
/// reports memory that failed before any thread accesses it (BUS_MCEERR_AO, where vm.memory_failure_early_kill is set). The report counts,
/// too: the kernel may drop the page and keep the file. Then the next access raises no signal, and gets zeroes, or what the file had on its
/// disk, in the place of what the guest wrote.
fn cause(slots: &[Slot], code: libc::c_int, address: usize) -> Cause {
    let lost = |(slot, own): (usize, &Slot)| Some(Cause::Lost { slot, bounds: own.around(address)? });
    let other = if code == libc::BUS_MCEERR_AO { Cause::Report } else { Cause::Foreign };
    slots.iter().enumerate().find_map(lost).unwrap_or(other)
}

/// Makes only system calls and atomic operations: it may interrupt anything.
extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid description of the fault.
    let info = unsafe { &*info };
    // SAFETY: this signal's description has an address.
    let address = unsafe { info.si_addr() } as usize;
    let is_answered = match cause(&SLOTS, info.si_code, address) {
        Cause::Lost { slot, bounds } => {
            ANY_LOST.store(true, Ordering::Relaxed);
            SLOTS[slot].lost.store(true, Ordering::Release);
            let is_replaced =
                replace(bounds.start, bounds.end - bounds.start) || replace_page(address, bounds.page);
            // A report comes without an access that waits for memory.
            is_replaced || info.si_code == libc::BUS_MCEERR_AO
        }
        Cause::Report => true,
        Cause::Foreign => false,
    };
    if !is_answered && let Some(before) = BEFORE.get() {
        // The access is tried again and fails again: then it is theirs.
        // SAFETY: the action is the one that was in force before ours.
        let _ = unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
    }
}

/// Where memory is never overcommitted there may be none for the whole of a large range. Then it is one page at a time, of a guest whose
/// queues stop with the request at hand.
fn replace_page(address: usize, page: usize) -> bool {
    let page = page.max(1);
    replace(address - address % page, page)
}

/// Puts empty memory in the place of what has no file behind it any more. It takes memory only where it is written.
fn replace(start: usize, len: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the pages lie in a mapping of ours that is watched, so still mapped.
    let mapped = unsafe { libc::mmap(start as *mut libc::c_void, len, access, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::allowance::Allowance;
    use crate::mapping::Mapping;
    use crate::message::Area;

    /// A file that was cut, memory that failed under an access, memory that failed and was not accessed.
    const CODES: [libc::c_int; 3] = [libc::BUS_ADRERR, libc::BUS_MCEERR_AR, libc::BUS_MCEERR_AO];

    /// The kernel's description of a fault: three numbers, then the address (sigaction(2)).
    fn fault(code: libc::c_int, address: usize) -> libc::siginfo_t {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let at = (3 * size_of::<libc::c_int>()).next_multiple_of(align_of::<usize>());
        // SAFETY: the address of a fault has its place within a description, which is longer than 100 bytes.
        let place = unsafe { info.as_mut_ptr().byte_add(at) }.cast::<usize>();
        // SAFETY: as above, and the place is a multiple of its alignment away from the start, which is aligned.
        unsafe { place.write(address) };
        // SAFETY: numbers of any value and an address are a description.
        let mut info = unsafe { info.assume_init() };
        info.si_code = code;
        info
    }

    #[test]
    fn a_fault_in_a_range_loses_it_whatever_its_code_is_and_one_elsewhere_loses_none() {
        let slots = [const { Slot::empty() }; 2];
        let bounds = Bounds { start: 0x1000, end: 0x3000, page: 0x1000 };
        slots[1].set(bounds);
        for code in CODES {
            for address in [0x1000, 0x2fff] {
                let lost = Cause::Lost { slot: 1, bounds };
                assert_eq!(cause(&slots, code, address), lost, "{code} {address:#x}");
            }
            // What was only reported is left alone: the program ends when it is accessed.
            let other = if code == libc::BUS_MCEERR_AO { Cause::Report } else { Cause::Foreign };
            for address in [0, 0xfff, 0x3000] {
                assert_eq!(cause(&slots, code, address), other, "{code} {address:#x}");
            }
        }
    }

    /// Memory of the machine that failed was answered with zeroes alone: a guest's write of them was a success.
    #[test]
    fn memory_that_failed_reads_as_zeroes_and_is_marked_as_lost() {
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memory file");
        ftruncate(&memory, 0x2000).expect("its length");
        let allowance = Allowance::default();
        let map = || Mapping::new(&memory, Area { len: 0x2000, file_offset: 0 }, &allowance);
        for code in CODES {
            let (failed, other) = (map().expect("a mapping"), map().expect("another one"));
            failed.write(0, &[7; 0x2000]).expect("it lies inside");
            let address = failed.pages.as_ptr() as usize + 0x1234;
            handle(libc::SIGBUS, &mut fault(code, address), std::ptr::null_mut());
            let mut bytes = [1; 0x2000];
            failed.read(0, &mut bytes).expect("it lies inside");
            assert!(failed.is_lost() && bytes == [0; 0x2000], "{code}");
            other.read(0, &mut bytes).expect("it lies inside");
            assert!(!other.is_lost() && bytes == [7; 0x2000], "{code}");
        }
    }

    /// The bounds of a range that was dropped and those of the next one in its slot were read as one range, and a mapping in between was
    /// replaced.
    #[test]
    fn bounds_that_are_being_changed_are_nobodys() {
        let slot = Slot::empty();
        assert_eq!(slot.around(0x1000), None);
        let bounds = Bounds { start: 0x1000, end: 0x3000, page: 0x1000 };
        slot.set(bounds);
        assert_eq!(slot.around(0x2fff), Some(bounds));
        assert_eq!((slot.around(0xfff), slot.around(0x3000)), (None, None));
        slot.version.fetch_add(1, Ordering::Relaxed);
        assert_eq!(slot.around(0x2000), None);
        slot.version.fetch_add(1, Ordering::Relaxed);
        slot.set(Bounds::default());
        assert_eq!(slot.around(0x2000), None);
    }
}
