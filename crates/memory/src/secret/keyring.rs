//! Keys that the kernel keeps (keyrings(7)).

use std::io;

use crate::secret::Secret;

/// The payload of the key with the number `serial`, as `keyctl print` shows it: at most `bytes_max`. Costs two system calls at least.
///
/// # Errors
/// When there is no such key, it may not be read (EACCES, or ENOKEY), it has expired or was revoked, or is longer.
pub fn read_key(serial: i32, bytes_max: usize) -> io::Result<Secret> {
    let mut secret = Secret::zeroed(0);
    loop {
        let len = read_into(serial, secret.bytes_mut())?;
        if len > bytes_max {
            let what = format!("the key has {len} bytes; allowed: at most {bytes_max}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        if len <= secret.bytes().len() {
            secret.truncate(len);
            return Ok(secret);
        }
        // It has that length now, unless another process changes it.
        secret = Secret::zeroed(len);
    }
}

/// Bytes that the key has. They are in `buf` if all of them fit.
fn read_into(serial: i32, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most as many bytes as `buf` has, which nothing else uses meanwhile.
    let read = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            i64::from(libc::KEYCTL_READ),
            i64::from(serial),
            buf.as_mut_ptr(),
            buf.len(),
        )
    };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_not_there_is_an_error() {
        // Serial numbers are positive; -1 is the thread's own keyring, which is no key.
        assert!(read_key(i32::MAX, 100).is_err());
    }
}
