//! Monitors on standard input and output, files and pipes: threads carry bytes between these and a socket that the control server serves as any other.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};

use reactor::net::Stream;
use tool::failure::Failure;

/// Bytes that are carried at a time at most.
const PIECE_BYTES: usize = 64 << 10;

/// Where commands come from; `None`: none come.
pub type Input = Option<Box<dyn Read + Send>>;

/// Where answers and events go.
pub type Output = Box<dyn Write + Send>;

/// The monitor's far end.
#[derive(Debug)]
pub struct Carried {
    /// What messages call it.
    name: &'static str,
    output: JoinHandle<()>,
}

impl Carried {
    /// Begins to carry; gives the end that is served.
    ///
    /// # Errors
    /// When the system lets us have no socket or thread.
    pub fn begin(name: &'static str, input: Input, mut output: Output) -> io::Result<(Stream, Self)> {
        let (ours, served) = UnixStream::pair()?;
        let mut to_server = ours.try_clone()?;
        served.set_nonblocking(true)?;
        // The end of the input is not the end of the monitor: what was asked for is still answered, and events are still reported. A thread that
        // waits for input ends with the process.
        if let Some(mut input) = input {
            thread::Builder::new()
                .name("cowhand-monitor-in".to_owned())
                .spawn(move || carry(&mut input, &mut to_server))?;
        }
        let output = thread::Builder::new()
            .name("cowhand-monitor-out".to_owned())
            .spawn(move || carry(&mut &ours, &mut output))?;
        Ok((Stream::from_fd(OwnedFd::from(served)), Self { name, output }))
    }

    /// Waits until everything that the server wrote is written: it has hung up.
    ///
    /// # Errors
    /// When the thread that writes ended by a fault.
    pub fn finish(self) -> Result<(), Failure> {
        let failed = |_| Failure::new(format!("{} could not be written", self.name));
        self.output.join().map_err(failed)
    }
}

/// Standard input and output.
///
/// # Errors
/// When standard output is not open.
pub fn stdio() -> io::Result<(Input, Output)> {
    // The main thread has the lock of standard output as long as the program runs.
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    Ok((Some(Box::new(io::stdin())), Box::new(output)))
}

/// A file that takes the answers, emptied first unless `append` says otherwise, and perhaps one with commands.
///
/// # Errors
/// When one cannot be opened.
pub fn files(path: &Path, append: bool, commands: Option<&Path>) -> io::Result<(Input, Output)> {
    let mut options = OpenOptions::new();
    let output = options.write(true).create(true).append(append).truncate(!append).open(path)?;
    let input: Input = match commands {
        Some(commands) => Some(Box::new(File::open(commands)?)),
        None => None,
    };
    Ok((input, Box::new(output)))
}

/// The FIFOs `PATH.in` and `PATH.out`, or the one at `path` for both directions. Opening them waits for no other program.
///
/// # Errors
/// When one is missing or cannot be opened.
pub fn pipes(path: &Path) -> io::Result<(Input, Output)> {
    let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
    let beside = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        open(Path::new(&name))
    };
    let (input, output) = match (beside(".in"), beside(".out")) {
        (Ok(input), Ok(output)) => (input, output),
        _ => (open(path)?, open(path)?),
    };
    Ok((Some(Box::new(input)), Box::new(output)))
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

    #[test]
    fn a_file_is_emptied_unless_it_is_appended_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for (append, expected) in [(false, "a"), (true, "aa"), (false, "a")] {
            let (input, mut output) = files(&path, append, None).unwrap();
            output.write_all(b"a").unwrap();
            assert!(input.is_none());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        }
        assert!(pipes(&directory.path().join("none")).is_err());
    }
}
