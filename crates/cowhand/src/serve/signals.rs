//! SIGINT and SIGTERM as a descriptor that becomes readable.

use std::io;
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// A stream that gets a byte for each SIGINT and SIGTERM from now on: the first asks for an orderly
/// end, a second one for haste.
///
/// # Errors
/// When the process may not have more descriptors.
pub fn termination() -> io::Result<UnixStream> {
    let (readable, writable) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        pipe::register(signal, writable.try_clone()?)?;
    }
    Ok(readable)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_signal_becomes_a_byte() {
        let mut stream = termination().unwrap();
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::TERM).unwrap();
        let mut byte = [0; 1];
        stream.read_exact(&mut byte).unwrap();
    }
}
