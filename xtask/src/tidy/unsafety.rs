//! Unsafe code stands in few rooms, which are named here.

use super::sizes::without_tests;
use super::tree::Tree;

/// Where it is, and why it cannot be elsewhere.
const ROOMS: [(&str, &str); 17] = [
    ("crates/memory/src/", "bytes that the kernel writes while nobody looks"),
    ("crates/reactor/src/", "rings shared with the kernel, and sockets from descriptors"),
    ("crates/door-vhost-user-blk/src/mapping", "memory of guests, mapped, and what happens when it is cut"),
    ("crates/door-fuse/src/cloned.rs", "an ioctl that no crate wraps"),
    ("crates/door-ublk/src/kernel.rs", "buffers and memory that the kernel's block driver shares"),
    ("crates/storage/src/file/extent.rs", "system calls on buffers of an I/O"),
    ("crates/storage/src/locks.rs", "locks of open file descriptions, which no crate wraps"),
    ("crates/storage/src/page_cache.rs", "what the page cache has of a file, which no crate wraps"),
    ("crates/remote/src/rbd/librbd/", "functions of Ceph's library, in a process of its own"),
    ("crates/adapters/src/", "memory of guests and functions of traits that are unsafe to call"),
    ("crates/adapters/tests/", "the same, in the shape of monitors that are in no registry"),
    ("crates/capi/src/", "functions that C calls, and what their pointers lead to"),
    (
        "crates/memory/src/secret/",
        "pages that are locked, registers that are cleared, and the kernel's keyrings",
    ),
    ("crates/monitor/tests/sandbox/", "calls and rings of a program that attacks the sandbox from inside"),
    ("tests/src/libblkio.rs", "answers that libblkio leaves in memory of ours"),
    ("tests/src/virtio_driver.rs", "memory of a guest, mapped, for a driver of others"),
    ("fuzz/src/memory.rs", "an allocator that refuses on purpose"),
];

pub fn complaints(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in tree.ending(".rs") {
        let named = ROOMS.iter().any(|(room, _)| path.starts_with(room));
        if !named && let Some(line) = without_tests(text).lines().position(is_unsafe) {
            complaints.push(format!("{path}:{}: unsafe code outside of the rooms named for it", line + 1));
        }
    }
    let used = |room: &str| {
        tree.ending(".rs").any(|(path, text)| path.starts_with(room) && text.lines().any(is_unsafe))
    };
    let unused = ROOMS.iter().filter(|(room, _)| !used(room));
    complaints.extend(unused.map(|(room, _)| format!("{room}: named for unsafe code, and has none")));
    complaints
}

/// Whether a line of code, not of words, uses it.
fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or(line);
    ["unsafe {", "unsafe fn ", "unsafe impl ", "unsafe trait ", "unsafe extern "].iter().any(|use_| {
        code.find(use_).is_some_and(|at| {
            at == 0 || code.get(..at).is_some_and(|before| before.ends_with([' ', '(', '|']))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Complaints about one file more than all rooms, which are used.
    fn of(path: &str, text: &str) -> Vec<String> {
        let in_rooms = ROOMS
            .iter()
            .map(|(room, _)| if room.ends_with(".rs") { room.to_string() } else { format!("{room}/x.rs") });
        let rooms: Vec<String> = in_rooms.collect();
        let mut files: Vec<(&str, &str)> =
            rooms.iter().map(|room| (room.as_str(), "unsafe { a() }")).collect();
        files.push((path, text));
        complaints(&Tree::of(&files))
    }

    #[test]
    fn unsafe_code_elsewhere_is_found() {
        assert_eq!(of("crates/qcow2/src/map.rs", "fn a() {\n    unsafe { b() }\n}\n").len(), 1);
        assert_eq!(of("crates/qcow2/src/map.rs", "unsafe impl Send for X {}\n").len(), 1);
    }

    #[test]
    fn words_and_lints_are_not_code() {
        assert_eq!(of("crates/qcow2/src/map.rs", "#![forbid(unsafe_code)]\n// unsafe { }\n"), [""; 0]);
    }

    #[test]
    fn a_room_that_has_none_leaves_the_list() {
        assert_eq!(complaints(&Tree::of(&[])).len(), ROOMS.len());
    }
}
