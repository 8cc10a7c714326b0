//! How rings are made: disabled, restricted to the operations of [`crate::ring`], enabled by the thread that uses them.
//!
//! A filter of system calls does not see what a ring does. So the kernel checks each entry of a ring against a list that can only be set before the
//! ring is enabled. A process in a sandbox makes no ring at all: it has rings in reserve, made before ([`prepare_rings`]).

use std::io;

use io_uring::register::Restriction;
use io_uring::{IoUring, Probe, opcode};
use parking_lot::Mutex;

/// Entries of the submission queue: more operations started in one turn are submitted in parts.
const SUBMISSIONS: u32 = 256;

/// Entries of the completion queue: with more operations in flight than this the kernel keeps
/// completions in a list of its own, which costs but loses nothing.
const COMPLETIONS: u32 = 4096;

/// Every loop needs these. None of them takes an address: what is sent goes by a system call, which a filter can look at (with MSG_FASTOPEN a message
/// connects its socket).
const NEEDED: [u8; 10] = [
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::Recv::CODE,
    opcode::Accept::CODE,
    opcode::PollAdd::CODE,
    opcode::AsyncCancel::CODE,
];

/// Used where the kernel has them: the trial of a new ring, and commands of the ublk driver (Linux 6.0).
const OPTIONAL: [u8; 2] = [opcode::Nop::CODE, opcode::UringCmd16::CODE];

/// Rings for loops that begin when this process makes no more rings.
static RESERVE: Mutex<Vec<IoUring>> = Mutex::new(Vec::new());

/// Makes rings for `count` loops that begin later, on any thread: for a process that gives up the right to make rings. Without io_uring there are none,
/// and these loops use threads. Rings that no loop took stay until the process ends: about 100 KiB each.
pub fn prepare_rings(count: usize) {
    let made: Vec<IoUring> = std::iter::repeat_with(make).take(count).map_while(Result::ok).collect();
    RESERVE.lock().extend(made);
}

/// A ring that this thread may use from now on: one of the reserve, or a new one.
///
/// # Errors
/// When the kernel refuses, or has not what is needed.
pub(crate) fn take() -> io::Result<IoUring> {
    let reserved = RESERVE.lock().pop();
    let ring = reserved.map_or_else(make, Ok)?;
    // The thread that enables a ring is the only one that may submit to it (IORING_SETUP_SINGLE_ISSUER).
    ring.submitter().register_enable_rings().map_err(registering)?;
    Ok(ring)
}

/// A ring that does nothing yet, and will do nothing but what is listed here.
fn make() -> io::Result<IoUring> {
    let ring = set_up()?;
    let probe = probe(&ring)?;
    let listed = NEEDED.into_iter().chain(OPTIONAL).filter(|&code| probe.is_supported(code));
    let mut restrictions: Vec<Restriction> = listed.map(Restriction::sqe_op).collect();
    ring.submitter().register_restrictions(&mut restrictions).map_err(registering)?;
    Ok(ring)
}

/// Completions are run only when this thread asks for them (Linux 6.1), or at least without
/// interrupting it (5.19), or as they come.
fn set_up() -> io::Result<IoUring> {
    let deferred = IoUring::builder()
        .setup_cqsize(COMPLETIONS)
        .setup_r_disabled()
        .setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .build(SUBMISSIONS);
    deferred
        .or_else(|_| {
            let mut cooperative = IoUring::builder();
            cooperative.setup_cqsize(COMPLETIONS).setup_r_disabled().setup_submit_all();
            cooperative.setup_coop_taskrun().setup_taskrun_flag();
            cooperative.build(SUBMISSIONS)
        })
        .or_else(|_| IoUring::builder().setup_cqsize(COMPLETIONS).setup_r_disabled().build(SUBMISSIONS))
        .map_err(|error| io::Error::new(error.kind(), format!("io_uring_setup: {error}")))
}

/// What the kernel's rings can do.
fn probe(ring: &IoUring) -> io::Result<Probe> {
    let unsupported =
        |what: &str| io::Error::new(io::ErrorKind::Unsupported, format!("io_uring without {what}"));
    let parameters = ring.params();
    if !parameters.is_feature_nodrop()
        || !parameters.is_feature_ext_arg()
        || !parameters.is_feature_fast_poll()
    {
        return Err(unsupported("lossless completions, timed waits or polled sockets (Linux 5.11)"));
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(registering)?;
    match NEEDED.into_iter().find(|&code| !probe.is_supported(code)) {
        Some(code) => Err(unsupported(&format!("operation {code}"))),
        None => Ok(probe),
    }
}

fn registering(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("io_uring_register: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring did whatever its submitter wrote into it: sockets of any kind, extended attributes of any file, past the filter of system calls.
    #[test]
    fn a_ring_does_nothing_that_is_not_listed_and_its_list_is_closed() {
        let mut ring = take().unwrap();
        let run = |ring: &mut IoUring, entry: io_uring::squeue::Entry| {
            // SAFETY: what the operations of this test point to lives as long as the test, or is nothing.
            unsafe { ring.submission().push(&entry) }.unwrap();
            ring.submit_and_wait(1).unwrap();
            ring.completion().next().unwrap().result()
        };
        let nothing = opcode::Nop::new().build();
        assert_eq!(run(&mut ring, nothing.clone()), 0);
        let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_DGRAM, 0).build();
        assert_eq!(run(&mut ring, socket), -libc::EACCES);
        let path = c"/dev/null".as_ptr();
        let open = opcode::OpenAt::new(io_uring::types::Fd(libc::AT_FDCWD), path).build();
        assert_eq!(run(&mut ring, open), -libc::EACCES);
        let attribute = opcode::SetXattr::new(c"user.x".as_ptr(), std::ptr::null(), path, 0).build();
        assert_eq!(run(&mut ring, attribute), -libc::EACCES);
        let linked = nothing.flags(io_uring::squeue::Flags::IO_LINK);
        assert_eq!(run(&mut ring, linked), -libc::EACCES, "no flag is in use");
        let more = ring.submitter().register_restrictions(&mut [Restriction::sqe_op(opcode::Socket::CODE)]);
        assert!(more.is_err(), "more operations were listed");
    }

    #[test]
    fn a_ring_made_in_advance_is_used_by_the_thread_that_takes_it() {
        prepare_rings(1);
        let completed = std::thread::spawn(|| {
            let mut ring = take().unwrap();
            // SAFETY: an operation that does nothing points to nothing.
            unsafe { ring.submission().push(&opcode::Nop::new().build()) }.unwrap();
            ring.submit_and_wait(1).unwrap();
            ring.completion().count()
        });
        assert_eq!(completed.join().unwrap(), 1);
    }
}
