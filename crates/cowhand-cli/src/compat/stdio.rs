//! A monitor on standard input and output: two threads carry bytes between these and a socket that the control server serves as any other.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use reactor::net::Stream;

use crate::failure::Failure;

/// Bytes that are carried at a time at most.
const PIECE_BYTES: usize = 64 << 10;

/// The monitor's far end.
#[derive(Debug)]
pub struct Stdio {
    output: JoinHandle<()>,
}

impl Stdio {
    /// Begins to carry; gives the end that is served.
    ///
    /// # Errors
    /// When the system lets us have no socket or thread.
    pub fn open() -> io::Result<(Stream, Self)> {
        let (ours, served) = UnixStream::pair()?;
        let mut to_server = ours.try_clone()?;
        served.set_nonblocking(true)?;
        // The end of the input is not the end of the monitor: what was asked for is still answered, and events are still reported. A thread that
        // waits for input ends with the process.
        thread::Builder::new()
            .name("cowhand-stdin".to_owned())
            .spawn(move || carry(&mut io::stdin().lock(), &mut to_server))?;
        // The main thread has the lock of standard output as long as the program runs.
        let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let output = thread::Builder::new()
            .name("cowhand-stdout".to_owned())
            .spawn(move || carry(&mut &ours, &mut stdout))?;
        Ok((Stream::from_fd(OwnedFd::from(served)), Self { output }))
    }

    /// Waits until everything that the server wrote is written: it has hung up.
    ///
    /// # Errors
    /// When the thread that writes ended by a fault.
    pub fn finish(self) -> Result<(), Failure> {
        self.output.join().map_err(|_| Failure::new("standard output could not be written"))
    }
}

/// Until the end of `from`, or `to` takes no more.
fn carry(from: &mut impl Read, to: &mut impl Write) {
    let mut bytes = vec![0; PIECE_BYTES];
    loop {
        let count = match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let Some(piece) = bytes.get(..count) else { return };
        if to.write_all(piece).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_carried_in_order() {
        let bytes: Vec<u8> = (0..3 * PIECE_BYTES + 1).map(|at| at as u8).collect();
        let mut carried = Vec::new();
        carry(&mut &bytes[..], &mut carried);
        assert_eq!(carried, bytes);
    }
}
