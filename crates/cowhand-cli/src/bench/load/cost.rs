//! What the process has cost so far: CPU time and memory.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// CPU time of this process, all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// In the program itself.
    pub user: Duration,
    /// In the kernel on its behalf.
    pub system: Duration,
}

impl CpuTimes {
    /// Until now; zero where the kernel does not tell.
    pub fn now() -> Self {
        getrusage(UsageWho::RUSAGE_SELF).map_or_else(
            |_| Self::default(),
            |usage| Self { user: duration(usage.user_time()), system: duration(usage.system_time()) },
        )
    }

    /// From `start` until `self`.
    #[must_use]
    pub fn since(self, start: Self) -> Self {
        Self { user: self.user.saturating_sub(start.user), system: self.system.saturating_sub(start.system) }
    }
}

fn duration(time: TimeVal) -> Duration {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or(0))
}

/// Memory of this process in bytes: resident now, and the most it ever was. Zero where unknown.
pub fn resident_bytes() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    (kib_field(&status, "VmRSS:") << 10, kib_field(&status, "VmHWM:") << 10)
}

fn kib_field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_proc_status_is_its_number_of_kibibytes() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t     124 kB\n";
        assert_eq!((kib_field(status, "VmRSS:"), kib_field(status, "VmHWM:")), (124, 2048));
        assert_eq!(kib_field("", "VmRSS:"), 0);
    }

    #[test]
    fn work_takes_cpu_time_and_memory() {
        let start = CpuTimes::now();
        let mut state = 1u64;
        while CpuTimes::now().since(start) == CpuTimes::default() {
            state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005));
        }
        let (now, most) = resident_bytes();
        assert!(0 < now && now <= most);
    }
}
