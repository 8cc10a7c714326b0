//! What calculations leave on the stack.

use std::hint::black_box;

/// What `work` comes to. Then `BYTES` of the stack where it worked are overwritten: what it held there of passwords and keys is gone, if
/// it went no deeper. Costs a memory fill of `BYTES`.
#[inline(never)]
pub fn wiped_stack<const BYTES: usize, T>(work: impl FnOnce() -> T) -> T {
    let done = apart(work);
    wipe::<BYTES>();
    done
}

/// A frame of its own, below which `work` has its own.
#[inline(never)]
fn apart<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Its frame lies where that of `apart` lay.
#[inline(never)]
fn wipe<const BYTES: usize>() {
    let mut area = [0_u8; BYTES];
    // Somebody may look at it, as far as the compiler knows.
    black_box(&mut area);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: u64 = 0x5ec2_e75e_c2e7_5ec2;

    /// How often the mark is on the stack of this process.
    fn marks() -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let here = (&raw const maps) as usize;
        let ranges = maps.lines().filter_map(|line| line.split_once(' ')?.0.split_once('-'));
        let ranges = ranges.map(|(start, end)| [start, end].map(|at| usize::from_str_radix(at, 16).unwrap()));
        let [start, end] = ranges.into_iter().find(|[start, end]| (*start..*end).contains(&here)).unwrap();
        let mut bytes = vec![0; end - start];
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, start as u64).unwrap();
        bytes.windows(8).filter(|window| *window == MARK.to_le_bytes()).count()
    }

    #[inline(never)]
    fn leave_marks() -> u64 {
        let area = black_box([black_box(!MARK) ^ black_box(u64::MAX); 1000]);
        area.iter().fold(0, |sum, mark| sum.wrapping_add(*mark))
    }

    #[test]
    fn nothing_stays_on_the_stack() {
        wiped_stack::<{ 32 << 10 }, _>(leave_marks);
        let wiped = marks();
        leave_marks();
        let left = marks();
        assert!(left >= 100, "the test must be able to see marks: {left}");
        assert!(wiped < 10, "{wiped}");
    }
}
