//! How scattered the clusters of a disk are in the file: runs, and how far apart they are.

use serde::Serialize;

/// Clusters that follow each other on the disk and in the file are one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    runs: u64,
    bytes: u64,
    longest: u64,
    this: u64,
    /// Where the next cluster would go on.
    expected: Option<u64>,
    /// How many jumps are of 2^i bytes or more, and of less than twice that.
    jumps: Jumps,
    furthest: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Jumps([u64; u64::BITS as usize]);

impl Default for Jumps {
    fn default() -> Self {
        Self([0; u64::BITS as usize])
    }
}

/// What is said of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Fragmentation {
    /// Runs: what one request could read at a time.
    pub runs: u64,
    /// Bytes of a run, on average.
    pub average_run_bytes: u64,
    /// Bytes of the longest.
    pub longest_run_bytes: u64,
    /// Half of the ways from one run to the next are no longer than this, rounded up to a power of two where another is longer yet.
    pub median_jump_bytes: u64,
    /// The longest way.
    pub furthest_jump_bytes: u64,
}

impl Runs {
    /// The next stored cluster of the disk is at `host`.
    pub fn add(&mut self, host: u64, bytes: u64) {
        match self.expected {
            Some(expected) if expected == host => self.this += bytes,
            expected => {
                if let Some(expected) = expected {
                    self.jump(expected.abs_diff(host));
                }
                self.runs += 1;
                self.this = bytes;
            }
        }
        self.longest = self.longest.max(self.this);
        self.bytes += bytes;
        self.expected = Some(host.saturating_add(bytes));
    }

    fn jump(&mut self, bytes: u64) {
        self.furthest = self.furthest.max(bytes);
        if let Some(count) = self.jumps.0.get_mut(bytes.max(1).ilog2() as usize) {
            *count += 1;
        }
    }

    /// What is to be said.
    pub fn figures(&self) -> Fragmentation {
        Fragmentation {
            runs: self.runs,
            average_run_bytes: self.bytes.checked_div(self.runs).unwrap_or(0),
            longest_run_bytes: self.longest,
            median_jump_bytes: self.median_jump(),
            furthest_jump_bytes: self.furthest,
        }
    }

    fn median_jump(&self) -> u64 {
        let half = self.jumps.0.iter().sum::<u64>().div_ceil(2);
        let mut counted = 0;
        let reaches_half = |count: &u64| {
            counted += count;
            half > 0 && counted >= half
        };
        let power = self.jumps.0.iter().position(reaches_half);
        power.map_or(0, |power| 2u64.saturating_pow(power as u32 + 1).min(self.furthest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(hosts: &[u64]) -> Fragmentation {
        let mut runs = Runs::default();
        hosts.iter().for_each(|host| runs.add(*host, 10));
        runs.figures()
    }

    #[test]
    fn a_disk_in_one_piece_has_one_run_and_no_jumps() {
        let expected = Fragmentation {
            runs: 1,
            average_run_bytes: 30,
            longest_run_bytes: 30,
            ..Fragmentation::default()
        };
        assert_eq!(figures(&[50, 60, 70]), expected);
        assert_eq!(figures(&[]), Fragmentation::default());
    }

    #[test]
    fn runs_and_the_ways_between_them_are_counted_in_both_directions() {
        let expected = Fragmentation {
            runs: 3,
            average_run_bytes: 16,
            longest_run_bytes: 20,
            median_jump_bytes: 128,
            furthest_jump_bytes: 1010,
        };
        assert_eq!(figures(&[1000, 1010, 10, 100, 110]), expected);
    }
}
