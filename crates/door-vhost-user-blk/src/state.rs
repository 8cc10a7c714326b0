//! What a device is besides its disk, its memory and its rings, for another back-end after a live migration: whether the driver has the
//! write cache on, and what it knows of discards. Requests are not in it: a ring that has stopped has none in flight. The place of the bytes is the front-end's
//! (vhost-user specification, "Migrating back-end state").
//!
//! A save is written at once, into a pipe that must have room for it; a load is read when the front-end asks whether it went well, by
//! which time it has sent everything and hung up. So a front-end in order is not waited for. What the descriptor of another does is its own
//! choice: all of this runs aside from the loops.

use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::aside::Passed;
use crate::request::SECTOR_BYTES;

/// "cowhand vhost-user-blk state", and its version.
const MAGIC: [u8; 4] = *b"CVBS";
const VERSION: u32 = 1;
const BYTES: usize = 20;

/// Why a state was not taken over, or not given.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("direction {0} of a transfer; 0 (save) and 1 (load) are known")]
    Direction(u32),
    #[error("phase {0} of a transfer; only 0 (the device is stopped) is known")]
    Phase(u32),
    #[error("the descriptor has no room for {BYTES} bytes at this moment")]
    NoRoom,
    #[error("its descriptor does not answer")]
    NoAnswer,
    #[error("no transfer has begun")]
    None,
    #[error("the state has {found} bytes and then {then}; {BYTES} and the end were expected")]
    Length { found: usize, then: &'static str },
    #[error("it is not the state of a disk of this program")]
    Magic,
    #[error("its version is {0}; {VERSION} is known")]
    Version(u32),
    #[error("its write cache is {0}; 0 (off) and 1 (on) are known")]
    Cache(u8),
    #[error("it is of a disk of {theirs} bytes; this one has {ours}")]
    Size { theirs: u64, ours: u64 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What another back-end has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// Whether the driver has the write cache on.
    pub(crate) cache: bool,
    /// Bytes that discards are aligned to, as the guest knows it: a power of two.
    pub(crate) discard_bytes: u32,
    /// Bytes of the disk, as the guest knows it.
    pub(crate) size: u64,
}

impl State {
    fn encode(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8] = u8::from(self.cache);
        // At most 31. Versions that know nothing of it wrote 0, and showed a sector.
        bytes[9] = self.discard_bytes.max(1).ilog2() as u8;
        bytes[12..].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; BYTES]) -> Result<Self, StateError> {
        let [m0, m1, m2, m3, v0, v1, v2, v3, cache, discard, _, _, size @ ..] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(StateError::Magic);
        }
        match (u32::from_le_bytes([v0, v1, v2, v3]), cache) {
            (VERSION, 0 | 1) => {
                let discard_bytes = 1u32.checked_shl(discard.into()).unwrap_or(0).max(SECTOR_BYTES as u32);
                Ok(Self { cache: cache == 1, discard_bytes, size: u64::from_le_bytes(size) })
            }
            (VERSION, _) => Err(StateError::Cache(cache)),
            (version, _) => Err(StateError::Version(version)),
        }
    }
}

/// A transfer that has begun.
#[derive(Debug)]
pub(crate) enum Transfer {
    /// The state was written.
    Saved,
    /// It comes from here.
    Loads(Passed),
}

impl Transfer {
    /// Begins one in this direction and phase, over `fd`.
    ///
    /// # Errors
    /// For others than are known, or when the state cannot be written.
    pub(crate) fn begin(direction: u32, phase: u32, fd: Passed, state: State) -> Result<Self, StateError> {
        match (direction, phase) {
            (0, 0) => save(&fd, state).map(|()| Self::Saved),
            (1, 0) => Ok(Self::Loads(fd)),
            (0 | 1, phase) => Err(StateError::Phase(phase)),
            (direction, _) => Err(StateError::Direction(direction)),
        }
    }

    /// Ends it: the state that came for a disk of `size` bytes, if one was loaded.
    ///
    /// # Errors
    /// When it is not whole, or of something else.
    pub(crate) fn end(self, size: u64) -> Result<Option<State>, StateError> {
        let Self::Loads(fd) = self else { return Ok(None) };
        let state = load(&fd)?;
        match state.size == size {
            true => Ok(Some(state)),
            false => Err(StateError::Size { theirs: state.size, ours: size }),
        }
    }
}

fn is_ready(fd: impl AsFd, flags: PollFlags) -> io::Result<bool> {
    let mut fds = [PollFd::new(&fd, flags)];
    Ok(poll(&mut fds, Some(&Timespec::default()))? > 0)
}

/// A pipe that can be written to at all takes this little as a whole.
fn save(fd: &Passed, state: State) -> Result<(), StateError> {
    if !is_ready(fd, PollFlags::OUT)? {
        return Err(StateError::NoRoom);
    }
    match rustix::io::write(fd, &state.encode()).map_err(io::Error::from)? {
        BYTES => Ok(()),
        _ => Err(StateError::NoRoom),
    }
}

fn load(fd: &Passed) -> Result<State, StateError> {
    // One byte more than there should be.
    let (mut bytes, mut found) = ([0; BYTES + 1], 0);
    while let Some(rest) = bytes.get_mut(found..).filter(|rest| !rest.is_empty()) {
        if !is_ready(fd, PollFlags::IN)? {
            return Err(StateError::Length { found, then: "nothing yet" });
        }
        match rustix::io::read(fd, rest).map_err(io::Error::from)? {
            0 => break,
            count => found += count,
        }
    }
    match (found, bytes.first_chunk()) {
        (BYTES, Some(bytes)) => State::decode(bytes),
        (found, _) => Err(StateError::Length { found, then: if found < BYTES { "the end" } else { "more" } }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use rustix::pipe::pipe;

    use super::*;
    use crate::aside::Aside;

    fn begin(direction: u32, phase: u32, fd: OwnedFd, state: State) -> Result<Transfer, StateError> {
        Transfer::begin(direction, phase, Passed::new(fd, &Arc::new(Aside::default())), state)
    }

    const STATE: State = State { cache: false, discard_bytes: 65536, size: 7 << 30 };

    /// What comes of these bytes, with the other end closed or not.
    fn loaded(bytes: &[u8], closed: bool) -> Result<Option<State>, StateError> {
        let (from, to) = pipe().expect("a pipe");
        rustix::io::write(&to, bytes).expect("room");
        let kept = (!closed).then_some(to);
        let ended = begin(1, 0, from, STATE).expect("a load").end(STATE.size);
        drop(kept);
        ended
    }

    #[test]
    fn a_state_that_was_saved_is_loaded() {
        for state in [STATE, State { cache: true, ..STATE }] {
            let (from, to) = pipe().expect("a pipe");
            let saved = begin(0, 0, to, state).expect("room");
            assert_eq!(saved.end(1).expect("a save"), None);
            // A pipe is closed aside: its end is awaited.
            poll(&mut [PollFd::new(&from, PollFlags::HUP)], None).expect("the end");
            let loads = begin(1, 0, from, state).expect("a load");
            assert_eq!(loads.end(state.size).expect("a state"), Some(state));
        }
    }

    #[test]
    fn what_is_no_state_of_this_disk_is_refused() {
        let good = STATE.encode();
        assert_eq!(loaded(&good, true).expect("a state"), Some(STATE));
        let changed = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            loaded(&bytes, true)
        };
        assert!(matches!(changed(0, b'X'), Err(StateError::Magic)));
        assert!(matches!(changed(4, 2), Err(StateError::Version(2))));
        assert!(matches!(changed(8, 2), Err(StateError::Cache(2))));
        assert!(matches!(changed(12, 1), Err(StateError::Size { .. })));
        for len in 0..BYTES {
            assert!(matches!(loaded(&good[..len], true), Err(StateError::Length { .. })), "{len}");
        }
        assert!(matches!(loaded(&[&good[..], b"x"].concat(), true), Err(StateError::Length { .. })));
        // A peer that has not hung up is not waited for.
        assert!(matches!(loaded(&good, false), Err(StateError::Length { .. })));
        let (from, _to) = pipe().expect("a pipe");
        assert!(matches!(begin(2, 0, from, STATE), Err(StateError::Direction(2))));
        let (from, _to) = pipe().expect("a pipe");
        assert!(matches!(begin(1, 1, from, STATE), Err(StateError::Phase(1))));
        // A pipe without a reader at its other end, and one that is full.
        let (from, to) = pipe().expect("a pipe");
        drop(from);
        assert!(matches!(begin(0, 0, to, STATE), Err(StateError::Io(_))));
        let (_from, to) = pipe().expect("a pipe");
        rustix::io::ioctl_fionbio(&to, true).expect("a pipe that does not wait");
        while rustix::io::write(&to, &[0; 4096]).is_ok() {}
        assert!(matches!(begin(0, 0, to, STATE), Err(StateError::NoRoom)));
    }
}
