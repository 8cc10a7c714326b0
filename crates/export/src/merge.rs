//! Which requests, of those that came together, go to the disk as one (pure).
//!
//! Laws, which the tests hold: every request is in exactly one group; a group has one direction; its requests are contiguous, in the
//! group's order; it keeps within [`Limits`]; a request that fits none is a group of its own. Requests that came together have
//! no order, so their order may change.

use smallvec::SmallVec;

/// Requests that are looked at together, at most: as many as QEMU's virtio-blk device merges.
pub const REQUESTS_MAX: usize = 32;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

/// A request as far as merging depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which way.
    pub direction: Direction,
    /// First byte of the disk.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Parts of memory that it has.
    pub segments: usize,
}

/// What one group may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes.
    pub bytes_max: u64,
    /// Parts of memory.
    pub segments_max: usize,
}

/// Places of requests, ascending by their offsets.
pub type Group = SmallVec<[usize; 4]>;

/// Whether some requests, as direction, offset and length, are contiguous: otherwise there is nothing to merge. Of several that begin at one
/// place only the longest counts.
pub fn are_any_contiguous(requests: impl IntoIterator<Item = (Direction, u64, u64)>) -> bool {
    let mut sorted: SmallVec<[_; REQUESTS_MAX]> = requests.into_iter().collect();
    sorted.sort_unstable();
    let continues = |two: &[(Direction, u64, u64)]| {
        two[0].0 == two[1].0 && two[0].1.checked_add(two[0].2) == Some(two[1].1)
    };
    sorted.windows(2).any(continues)
}

/// The groups that `requests` make. Costs a sort of at most [`REQUESTS_MAX`].
pub fn groups(requests: &[Candidate], limits: Limits) -> Vec<Group> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    // Stable: of two at one place the first stays first.
    order.sort_by_key(|&at| (requests[at].direction, requests[at].offset));
    let mut groups: Vec<Group> = Vec::new();
    let mut open: Option<Candidate> = None;
    for at in order {
        let next = requests[at];
        match open.as_mut().and_then(|whole| Some((joined(whole, &next, limits)?, whole))) {
            Some((longer, whole)) => {
                *whole = longer;
                if let Some(group) = groups.last_mut() {
                    group.push(at);
                }
            }
            None => {
                open = Some(next);
                groups.push(Group::from_slice(&[at]));
            }
        }
    }
    groups
}

/// Both as one, if `next` begins where `whole` ends and the limits allow it.
fn joined(whole: &Candidate, next: &Candidate, limits: Limits) -> Option<Candidate> {
    let contiguous =
        whole.direction == next.direction && whole.offset.checked_add(whole.len) == Some(next.offset);
    let (len, segments) = (whole.len.checked_add(next.len)?, whole.segments.checked_add(next.segments)?);
    let fits = len <= limits.bytes_max && segments <= limits.segments_max;
    (contiguous && fits).then_some(Candidate { len, segments, ..*whole })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { bytes_max: 64, segments_max: 6 };

    fn request(direction: Direction, offset: u64, len: u64) -> Candidate {
        Candidate { direction, offset, len, segments: 1 }
    }

    fn assert_laws(requests: &[Candidate], limits: Limits) {
        let groups = groups(requests, limits);
        let mut seen: Vec<usize> = groups.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..requests.len()).collect::<Vec<_>>(), "each request once: {groups:?}");
        for group in &groups {
            let members: Vec<_> = group.iter().map(|&at| requests[at]).collect();
            assert!(members.iter().all(|one| one.direction == members[0].direction), "{members:?}");
            assert!(members.windows(2).all(|two| two[0].offset + two[0].len == two[1].offset), "{members:?}");
            let (bytes, segments) = (
                members.iter().map(|one| one.len).sum::<u64>(),
                members.iter().map(|one| one.segments).sum(),
            );
            let within = bytes <= limits.bytes_max && limits.segments_max >= segments;
            assert!(within || members.len() == 1, "{members:?}");
        }
    }

    #[test]
    fn contiguous_requests_of_one_direction_become_one_whatever_their_order() {
        let requests = [
            request(Direction::Write, 8, 8),
            request(Direction::Read, 16, 8),
            request(Direction::Write, 0, 8),
            request(Direction::Read, 24, 8),
            request(Direction::Write, 24, 8),
        ];
        let expected: Vec<Group> =
            [&[1, 3][..], &[2, 0], &[4]].iter().map(|group| Group::from_slice(group)).collect();
        assert_eq!(groups(&requests, LIMITS), expected);
    }

    #[test]
    fn contiguous_requests_are_noticed_whatever_their_order() {
        use Direction::{Read, Write};
        for (requests, expected) in [
            (&[(Read, 0, 8), (Read, 16, 8), (Read, 8, 8)][..], true),
            (&[(Read, 0, 8), (Write, 8, 8), (Read, 16, 8)], false),
            (&[(Write, u64::MAX - 8, 8), (Write, u64::MAX, 8)], true),
            (&[(Write, u64::MAX, 8), (Write, 0, 8)], false),
            (&[(Read, 0, 8)], false),
            (&[], false),
        ] {
            assert_eq!(are_any_contiguous(requests.iter().copied()), expected, "{requests:?}");
        }
    }

    #[test]
    fn neither_limits_nor_the_ends_of_numbers_are_passed() {
        let eight: Vec<_> = (0..20).map(|at| request(Direction::Read, at * 8, 8)).collect();
        assert_eq!(groups(&eight, LIMITS).iter().map(|group| group.len()).collect::<Vec<_>>(), [6, 6, 6, 2]);
        let large: Vec<_> = (0..4).map(|at| request(Direction::Write, at * 40, 40)).collect();
        assert_eq!(groups(&large, LIMITS).len(), 4);
        let last = [request(Direction::Write, u64::MAX - 8, 8), request(Direction::Write, u64::MAX, 8)];
        assert_laws(&last[..1], LIMITS);
        assert_eq!(groups(&last, LIMITS).len(), 1);
        assert!(groups(&[], LIMITS).is_empty());
    }

    #[test]
    fn the_laws_hold_for_any_requests() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for _ in 0..5000 {
            let requests: Vec<_> = (0..random(REQUESTS_MAX as u64))
                .map(|_| Candidate {
                    direction: if random(2) == 0 { Direction::Read } else { Direction::Write },
                    offset: random(12) * 8,
                    len: random(3) * 8,
                    segments: random(4) as usize,
                })
                .collect();
            assert_laws(&requests, LIMITS);
        }
    }
}
