//! Programs that tests need are waited for until they answer. That they listen is not enough: some reset the first connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// How long one answer may take. A later look asks again.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How long anything may take on a machine that is fully loaded.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what} does not come within {PATIENCE:?}");
        std::thread::sleep(LOOK);
    }
}

/// Waits until `answers`; fails when the program ends, or `within` is over.
pub fn until(what: &str, child: &mut Child, within: Duration, answers: impl Fn() -> bool) {
    let until = Instant::now() + within;
    while !answers() {
        let ended = child.try_wait().expect("a child");
        assert!(
            ended.is_none(),
            "{what} ends ({ended:?}); `cargo xtask test` as root installs what is missing"
        );
        assert!(Instant::now() < until, "{what} does not answer within {within:?}");
        std::thread::sleep(LOOK);
    }
}

/// Whether an HTTP server answers a request, whatever it says.
pub fn http(port: u16) -> bool {
    let answer = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        let host = format!("127.0.0.1:{port}");
        write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    answer().is_ok_and(|answer| answer.starts_with(b"HTTP/1."))
}

/// Whether an NBD server answers a client at a socket, a path or a port of this machine.
pub fn nbd(place: &str) -> bool {
    let asked = match place.parse::<u16>() {
        Ok(port) => TcpStream::connect(("127.0.0.1", port)).and_then(|stream| {
            stream.set_read_timeout(Some(ANSWER_WITHIN))?;
            leave_nbd(stream)
        }),
        Err(_) => UnixStream::connect(place).and_then(|stream| {
            stream.set_read_timeout(Some(ANSWER_WITHIN))?;
            leave_nbd(stream)
        }),
    };
    asked.is_ok_and(|greeted| greeted)
}

/// Whether a process listens at a socket. For one that was killed the kernel accepts a moment longer.
pub fn unix(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok_and(|stream| {
        // One in another namespace of processes has no number here.
        let listener = rustix::net::sockopt::socket_peercred(&stream);
        listener
            .map_or(true, |listener| Path::new(&format!("/proc/{}", listener.pid.as_raw_nonzero())).exists())
    })
}

/// Takes the greeting and leaves in order (`NBD_OPT_ABORT`); whether it was one.
fn leave_nbd(mut stream: impl Read + Write) -> std::io::Result<bool> {
    const ABORT: u32 = 2;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    // Of the flags those that we know: fixed newstyle, no zeroes.
    let flags = u32::from(greeting[17] & 3);
    let leaving = [&flags.to_be_bytes()[..], b"IHAVEOPT", &ABORT.to_be_bytes(), &[0; 4]].concat();
    stream.write_all(&leaving)?;
    stream.read_exact(&mut [0; 20])?;
    Ok(greeting.starts_with(b"NBDMAGIC"))
}
