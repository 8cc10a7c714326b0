//! Rings, asked for what they are not there for.

use io_uring::{IoUring, opcode, squeue, types};

use crate::calls::Outcome;

/// One of ours, made before the sandbox and enabled in it as a loop does it.
pub fn restricted() -> IoUring {
    let ring: IoUring = IoUring::builder().setup_r_disabled().build(4).unwrap();
    let mut allowed = [io_uring::register::Restriction::sqe_op(opcode::Nop::CODE)];
    ring.submitter().register_restrictions(&mut allowed).unwrap();
    ring
}

/// What the kernel says of an operation.
pub fn run(ring: &mut IoUring, entry: &squeue::Entry) -> Outcome {
    // SAFETY: what the entry points to outlives this call, which waits for its completion.
    unsafe { ring.submission().push(entry) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    let result = ring.completion().next().unwrap().result();
    if result < 0 { Err(-result) } else { Ok(result.into()) }
}

/// A socket of a family that no server makes.
pub fn socket() -> squeue::Entry {
    opcode::Socket::new(libc::AF_INET, libc::SOCK_DGRAM, 0).build()
}

/// An attribute of any file.
pub fn attribute(path: &std::ffi::CStr) -> squeue::Entry {
    opcode::SetXattr::new(c"user.evil".as_ptr(), b"evil".as_ptr().cast(), path.as_ptr(), 4).build()
}

/// Any file.
pub fn open(path: &std::ffi::CStr) -> squeue::Entry {
    opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).build()
}
