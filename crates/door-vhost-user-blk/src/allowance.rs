//! What front-ends may have mapped: ranges and bytes, for each and for all together.
//!
//! A process has a limited number of mappings (vm.max_map_count, 65,530 by default) and of addresses (128 TiB). Without a limit one
//! front-end takes all of either, and then no memory can be had for anybody. So each front-end has a share that is always there for it,
//! and a common part beyond, of which none gets more than it leaves to the others. What requests in flight still use counts until they end.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

use crate::limits::{
    COMMON_MAPPED_BYTES, COMMON_RANGES, FRONT_END_MAPPED_BYTES_MAX, FRONT_END_RANGES_MAX, FRONT_ENDS_MAX,
    OWN_MAPPED_BYTES, OWN_RANGES,
};
use crate::mapping::FilePolicy;

/// Why a range is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// One front-end has the most that any may have.
    #[error(
        "this front-end would have {asked} {what} mapped, also for requests in flight; at most {max} are allowed"
    )]
    FrontEnd {
        /// With the new range.
        asked: u64,
        /// Ranges or bytes.
        what: &'static str,
        /// The bound.
        max: u64,
    },
    /// All front-ends together have too much.
    #[error(
        "this front-end would have {asked} {what} mapped, and all others together leave no room for so many"
    )]
    Process {
        /// With the new range.
        asked: u64,
        /// Ranges or bytes.
        what: &'static str,
    },
}

/// One thing that is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    what: &'static str,
    /// Always there for each front-end.
    own: u64,
    /// One front-end's bound.
    most: u64,
    /// What all front-ends share beyond their own.
    common: u64,
}

impl Limit {
    /// What a front-end with `held` has of the common part.
    fn beyond_own(self, held: u64) -> u64 {
        held.saturating_sub(self.own)
    }

    /// What more of the common part `held` and `new` take, of which `used` is in use.
    fn more(self, (held, new, used): (u64, u64, u64), is_known: bool) -> Result<u64, NoRoom> {
        let asked = held.saturating_add(new);
        if asked > self.most {
            return Err(NoRoom::FrontEnd { asked, what: self.what, max: self.most });
        }
        let more = self.beyond_own(asked) - self.beyond_own(held);
        // What another process admitted is admitted again while there is room at all.
        let taken = if is_known { more } else { self.beyond_own(asked) };
        match more == 0 || taken <= self.common.saturating_sub(used) {
            true => Ok(more),
            false => Err(NoRoom::Process { asked, what: self.what }),
        }
    }
}

/// Ranges and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    ranges: u64,
    bytes: u64,
}

/// What the front-ends of a process share.
#[derive(Debug)]
struct Pool {
    ranges: Limit,
    bytes: Limit,
    /// Of the common parts.
    used: Mutex<Amount>,
}

impl Pool {
    /// For a process that may have `addresses` bytes of addresses (RLIMIT_AS), if that is limited: half of them are for everything else.
    fn new(addresses: Option<u64>) -> Self {
        let within = addresses.map_or(u64::MAX, |bytes| bytes / 2);
        let own = OWN_MAPPED_BYTES.min(within / 2 / FRONT_ENDS_MAX as u64);
        let common = COMMON_MAPPED_BYTES.min(within - own.saturating_mul(FRONT_ENDS_MAX as u64).min(within));
        Self {
            ranges: Limit {
                what: "ranges of memory",
                own: OWN_RANGES,
                most: FRONT_END_RANGES_MAX,
                common: COMMON_RANGES,
            },
            bytes: Limit { what: "bytes", own, most: FRONT_END_MAPPED_BYTES_MAX, common },
            used: Mutex::default(),
        }
    }

    fn of_process() -> Arc<Self> {
        static POOL: OnceLock<Arc<Pool>> = OnceLock::new();
        Arc::clone(POOL.get_or_init(|| Arc::new(Self::new(getrlimit(Resource::As).current))))
    }
}

/// What one front-end may map, and what it has mapped.
#[derive(Clone)]
pub struct Allowance {
    own: Arc<Own>,
}

struct Own {
    pool: Arc<Pool>,
    held: Mutex<Amount>,
    /// Another process had admitted what comes now.
    is_known: AtomicBool,
    policy: FilePolicy,
}

/// One range of a front-end. Given back when dropped.
pub(crate) struct Charge {
    own: Arc<Own>,
    bytes: u64,
}

impl Allowance {
    /// Of a front-end that may give memory in files as `policy` says.
    pub fn new(policy: FilePolicy) -> Self {
        Self::of(Pool::of_process(), policy)
    }

    fn of(pool: Arc<Pool>, policy: FilePolicy) -> Self {
        Self { own: Arc::new(Own { pool, held: Mutex::default(), is_known: AtomicBool::new(false), policy }) }
    }

    /// Which files may be mapped.
    pub(crate) fn policy(&self) -> FilePolicy {
        self.own.policy
    }

    /// Whether what is asked for from now on was admitted by another process already.
    pub(crate) fn set_known(&self, known: bool) {
        self.own.is_known.store(known, Ordering::Relaxed);
    }

    /// Room for a range of `bytes`.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn take(&self, bytes: u64) -> Result<Charge, NoRoom> {
        let (own, pool) = (&self.own, &self.own.pool);
        let known = own.is_known.load(Ordering::Relaxed);
        let (mut used, mut held) = (pool.used.lock(), own.held.lock());
        let ranges = pool.ranges.more((held.ranges, 1, used.ranges), known)?;
        let more = pool.bytes.more((held.bytes, bytes, used.bytes), known)?;
        *used = Amount { ranges: used.ranges + ranges, bytes: used.bytes + more };
        *held = Amount { ranges: held.ranges + 1, bytes: held.bytes + bytes };
        Ok(Charge { own: Arc::clone(own), bytes })
    }
}

/// Of this process, with files of this machine.
impl Default for Allowance {
    fn default() -> Self {
        Self::new(FilePolicy::default())
    }
}

impl fmt::Debug for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allowance({:?} mapped)", *self.own.held.lock())
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({} bytes)", self.bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let pool = &self.own.pool;
        let (mut used, mut held) = (pool.used.lock(), self.own.held.lock());
        let after = Amount { ranges: held.ranges - 1, bytes: held.bytes - self.bytes };
        used.ranges -= pool.ranges.beyond_own(held.ranges) - pool.ranges.beyond_own(after.ranges);
        used.bytes -= pool.bytes.beyond_own(held.bytes) - pool.bytes.beyond_own(after.bytes);
        *held = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn taken(pool: &Arc<Pool>, bytes: u64) -> (Allowance, Vec<Charge>) {
        let front = Allowance::of(Arc::clone(pool), FilePolicy::Local);
        let charges = std::iter::from_fn(|| front.take(bytes).ok()).collect();
        (front, charges)
    }

    /// One guest of a throttled disk held all 4,096 ranges that were watched: no other could start.
    #[test]
    fn no_number_of_front_ends_takes_the_ranges_of_another() {
        let pool = Arc::new(Pool::new(None));
        let greedy: Vec<_> = (0..FRONT_ENDS_MAX - 1).map(|_| taken(&pool, 4096)).collect();
        assert_eq!(greedy[0].1.len() as u64, FRONT_END_RANGES_MAX);
        assert!(pool.used.lock().ranges <= COMMON_RANGES);
        let (_, last) = taken(&pool, 4096);
        assert!(last.len() as u64 >= OWN_RANGES, "{}", last.len());
        drop((greedy, last));
        assert_eq!(*pool.used.lock(), Amount::default());
    }

    /// One front-end mapped 127 TiB; then the program had no address left for a buffer, and ended.
    #[test]
    fn no_number_of_front_ends_takes_the_addresses_of_the_process() {
        let pool = Arc::new(Pool::new(None));
        let greedy: Vec<_> = (0..100).map(|_| taken(&pool, 256 * GIB)).collect();
        let held = |charges: &[Charge]| charges.iter().map(|charge| charge.bytes).sum::<u64>();
        let all: u64 = greedy.iter().map(|(_, charges)| held(charges)).sum();
        assert!(all <= 96 << 40, "{all}");
        assert!(held(&greedy[0].1) >= 16 << 40, "a large guest finds room for its memory");
        let (next, _) = taken(&pool, 32 * GIB);
        drop(next);
        let next = Allowance::of(Arc::clone(&pool), FilePolicy::Local);
        assert!(next.take(OWN_MAPPED_BYTES).is_ok());
    }

    #[test]
    fn where_addresses_are_limited_front_ends_have_at_most_half_of_them() {
        let pool = Arc::new(Pool::new(Some(GIB)));
        let all: Vec<_> = (0..64).map(|_| taken(&pool, 1 << 20)).collect();
        let bytes: u64 = all.iter().flat_map(|(_, charges)| charges).map(|charge| charge.bytes).sum();
        assert!((GIB / 8..=GIB / 2).contains(&bytes), "{bytes}");
    }

    /// The next process is given front-ends in any order: each had what it has while others had less.
    #[test]
    fn what_one_process_admitted_the_next_one_admits_in_any_order() {
        let pool = Arc::new(Pool::new(None));
        let all: Vec<_> = (0..40).map(|_| taken(&pool, 64 * GIB)).collect();
        let counts: Vec<usize> = all.iter().map(|(_, charges)| charges.len()).collect();
        let next = Arc::new(Pool::new(None));
        let again: Vec<_> = counts
            .iter()
            .rev()
            .map(|&count| {
                let front = Allowance::of(Arc::clone(&next), FilePolicy::Local);
                front.set_known(true);
                let charges: Result<Vec<_>, _> = (0..count).map(|_| front.take(64 * GIB)).collect();
                charges.expect("it was admitted before")
            })
            .collect();
        drop((all, again));
    }
}
