//! The default memory limit for the maps of all images.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// This part of the memory that the process may use is for maps, at most: they must not matter beside what
/// the disks are for.
const PART: u64 = 64;

/// Least memory for maps that may be asked for: below it a few images have no room for what they need at
/// once.
pub const MAP_MEMORY_MIN: u64 = 1 << 20;

/// Bytes for the maps of all images: a 64th of the machine's memory, or of what the process's control group
/// may use if that is less, when this is asked first; at least [`MAP_MEMORY_MIN`]. Images that need less take less.
pub fn default_map_memory() -> u64 {
    static FOUND: OnceLock<u64> = OnceLock::new();
    *FOUND.get_or_init(|| (memory_of_process() / PART).max(MAP_MEMORY_MIN))
}

/// Bytes that this process may use: the machine's memory, or the limit of its control group if that is less.
pub fn memory_of_process() -> u64 {
    let machine = rustix::system::sysinfo();
    let machine = machine.totalram.saturating_mul(machine.mem_unit.into());
    let group =
        std::fs::read_to_string("/proc/self/cgroup").ok().and_then(|groups| limit(&groups, read_limit));
    group.map_or(machine, |group| group.min(machine))
}

/// The least limit of the control groups in `groups` (as in /proc/self/cgroup) and those above them, of the second version or of the first.
fn limit(groups: &str, read: impl Fn(&Path) -> Option<u64>) -> Option<u64> {
    let read = &read;
    let limits = groups.lines().filter_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, group) = line.split_once(":/")?;
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => return None,
        };
        let above = Path::new(group).ancestors();
        above.filter_map(move |group| read(&Path::new(root).join(group).join(file))).min()
    });
    limits.min()
}

/// The number in a control group's file; `None` for "max", and where there is no such file.
fn read_limit(path: &Path) -> Option<u64> {
    std::fs::read_to_string(PathBuf::from(path)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_group_on_the_way_up_counts() {
        let read = |path: &Path| match path.to_str()? {
            "/sys/fs/cgroup/vms.slice/one.scope/memory.max" => Some(3 << 30),
            "/sys/fs/cgroup/vms.slice/memory.max" => Some(2 << 30),
            "/sys/fs/cgroup/memory/old/memory.limit_in_bytes" => Some(1 << 30),
            "/sys/fs/cgroup/memory/memory.limit_in_bytes" => Some(1 << 62),
            _ => None,
        };
        assert_eq!(limit("0::/vms.slice/one.scope\n", read), Some(2 << 30));
        assert_eq!(limit("1:cpu:/x\n0::/vms.slice\n", read), Some(2 << 30));
        assert_eq!(limit("0::/\n", read), None);
        assert_eq!(limit("4:memory:/old\n0::/\n", read), Some(1 << 30));
        assert_eq!(limit("4:memory:/\n0::/vms.slice\n", read), Some(2 << 30));
        assert_eq!(limit("4:cpu:/old\n", read), None);
    }

    #[test]
    fn there_is_always_some_memory_for_maps() {
        assert!(default_map_memory() >= MAP_MEMORY_MIN);
    }
}
