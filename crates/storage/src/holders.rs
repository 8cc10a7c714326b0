//! Who holds a lock on a file: for the error message.

use std::fmt;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};

/// A process that holds a conflicting lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process id, in our namespace.
    pub pid: u32,
    /// Its name (`comm`), or empty if it ended meanwhile.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            _ if self.pid == std::process::id() => f.write_str("this process itself"),
            "" => write!(f, "process {}", self.pid),
            name => write!(f, "{name} (process {})", self.pid),
        }
    }
}

/// A lock line names this many fields at least: `N: OFDLCK ADVISORY READ -1 MAJOR:MINOR:INODE START END`.
const FIELDS: usize = 8;

/// Processes with a lock on byte `byte` of the file behind `fd`, as far as we may look: others, or,
/// if there are none, this one through another descriptor.
///
/// `/proc/locks` names no process for locks of this kind (they belong to an open file, not to a
/// process), so the open files of every process are asked. For error paths only: costs a read of
/// every `/proc/PID/fdinfo`.
pub(crate) fn holders(fd: impl AsFd, byte: u64) -> Vec<Holder> {
    let Ok(stat) = rustix::fs::fstat(&fd) else { return Vec::new() };
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let raw = fd.as_fd().as_raw_fd().to_string();
    let own = std::process::id();
    let holds =
        |pid: u32, except: Option<&str>| holds(&format!("/proc/{pid}/fdinfo"), except, stat.st_ino, byte);
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<u32> = pids.filter(|&pid| pid != own && holds(pid, None)).collect();
    if found.is_empty() && holds(own, Some(&raw)) {
        found.push(own);
    }
    found.into_iter().map(|pid| Holder { pid, name: name_of(pid) }).collect()
}

/// Whether one of a process's descriptors, but not `except`, holds the lock.
fn holds(fdinfo: &str, except: Option<&str>, inode: u64, byte: u64) -> bool {
    let Ok(entries) = fs::read_dir(fdinfo) else { return false };
    let others = entries.flatten().filter(|entry| entry.file_name().to_str() != except);
    let texts = others.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    texts.into_iter().any(|text| text.lines().any(|line| covers(line, inode, byte)))
}

/// Whether a line of an fdinfo file says that the inode is locked at `byte`. The device is not
/// compared: file systems with many devices behind one mount show another one here than in `stat`.
fn covers(line: &str, inode: u64, byte: u64) -> bool {
    let Some(lock) = line.strip_prefix("lock:") else { return false };
    let fields: Vec<&str> = lock.split_whitespace().collect();
    if fields.len() < FIELDS || fields[1] != "OFDLCK" {
        return false;
    }
    let same_inode = fields[5].rsplit(':').next().and_then(|text| text.parse().ok()) == Some(inode);
    let start = fields[6].parse::<u64>();
    let end = if fields[7] == "EOF" { Ok(u64::MAX) } else { fields[7].parse::<u64>() };
    same_inode && start.is_ok_and(|start| start <= byte) && end.is_ok_and(|end| byte <= end)
}

fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_line_is_understood_and_anything_else_is_not_a_lock() {
        let line = "lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:1234 100 101";
        assert!(covers(line, 1234, 100) && covers(line, 1234, 101));
        assert!(!covers(line, 1234, 102) && !covers(line, 1235, 100));
        assert!(covers("lock:\t1: OFDLCK ADVISORY  WRITE -1 fe:00:7 0 EOF", 7, 1 << 40));
        for junk in
            ["", "lock:", "pos:\t0", "lock: a b c d e f g h", "lock:\t1: POSIX ADVISORY READ 9 fe:00:7 0 EOF"]
        {
            assert!(!covers(junk, 7, 0), "{junk}");
        }
    }
}
