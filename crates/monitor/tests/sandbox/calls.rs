//! System calls, made as a program would make them that does not ask our libraries.

use std::ffi::{CString, c_long};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The result, or the number of the error.
pub type Outcome = Result<c_long, i32>;

/// Makes a call whose arguments are numbers, or the addresses of what outlives it.
pub fn call(number: c_long, arguments: [usize; 6]) -> Outcome {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the callers pass numbers, and addresses of memory that they keep until this returns.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(result) }
}

/// A path as the kernel takes it.
pub fn path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// The address of something.
pub fn at<T: ?Sized>(value: &T) -> usize {
    std::ptr::from_ref(value).cast::<u8>() as usize
}

/// A unix address and its length.
pub fn unix_address(path: &Path) -> (libc::sockaddr_un, usize) {
    // SAFETY: an address of zeroes is one.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
        *to = *from as libc::c_char;
    }
    (address, size_of::<libc::sockaddr_un>())
}

/// An address of this machine over TCP.
pub fn inet_address(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: std::net::Ipv4Addr::LOCALHOST.to_bits().to_be() },
        sin_zero: [0; 8],
    }
}
