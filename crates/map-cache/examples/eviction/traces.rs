//! What disks are asked for, as the slices that are looked up.

/// Look-ups, one after the other.
pub struct Trace {
    pub name: &'static str,
    pub slices: Vec<u32>,
    pub distinct: usize,
}

/// Look-ups of a trace, more or less.
const LEN: usize = 400_000;
/// Slices of the disk.
const SLICES: u32 = 2000;
/// Look-ups of one slice by a sequential reader: 32 MiB in requests of 512 KiB.
const IN_A_ROW: usize = 64;

/// Random numbers, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end)) as u32
    }
}

/// Slice `n` with a weight of 1 / (n + 1), scattered over the disk.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(count: u32) -> Self {
        let mut sum = 0.0;
        Self(
            (0..count)
                .map(|rank| {
                    sum += 1.0 / f64::from(rank + 1);
                    sum
                })
                .collect(),
        )
    }

    fn next(&self, random: &mut Random) -> u32 {
        let all = self.0.last().copied().unwrap_or(0.0);
        let point = (random.next() >> 11) as f64 / (1u64 << 53) as f64 * all;
        let rank = self.0.partition_point(|&sum| sum < point) as u32;
        // 1237 and the number of slices have no common factor.
        (rank * 1237) % SLICES
    }
}

pub fn all() -> [Trace; 6] {
    [around(), uniform(), zipf(), scan_and_zipf(), scan_and_working_set(), boot()]
}

fn trace(name: &'static str, slices: Vec<u32>) -> Trace {
    let distinct = slices.iter().collect::<std::collections::BTreeSet<_>>().len();
    Trace { name, slices, distinct }
}

/// All of the disk in the same order, again and again.
fn around() -> Trace {
    // 1237 and the number of slices have no common factor.
    trace("loop", (0..LEN as u32).map(|at| at.wrapping_mul(1237) % SLICES).collect())
}

fn uniform() -> Trace {
    let mut random = Random(1);
    trace("uniform", (0..LEN).map(|_| random.below(SLICES)).collect())
}

fn zipf() -> Trace {
    let (mut random, zipf) = (Random(2), Zipf::new(SLICES));
    trace("zipf", (0..LEN).map(|_| zipf.next(&mut random)).collect())
}

/// A backup reads the disk from end to end, again and again, beside zipf reads: as many of these as
/// requests of the backup.
fn scan_and_zipf() -> Trace {
    let (mut random, zipf) = (Random(3), Zipf::new(SLICES));
    let mut slices = Vec::with_capacity(LEN);
    for at in 0..LEN / 2 {
        slices.push((at / IN_A_ROW) as u32 % SLICES);
        slices.push(zipf.next(&mut random));
    }
    trace("scan + zipf", slices)
}

/// As before, beside random reads in a part of the disk that just fits the middle size.
fn scan_and_working_set() -> Trace {
    let mut random = Random(4);
    let mut slices = Vec::with_capacity(LEN);
    for at in 0..LEN / 2 {
        slices.push((at / IN_A_ROW) as u32 % SLICES);
        slices.push(random.below(SLICES / 12));
    }
    trace("scan + working set", slices)
}

/// A virtual machine boots, is used, ends and boots again, as it was recorded: for each request the MiB of its disk, `*` and how
/// many requests in a row were in it.
///
/// Debian 12 with its standard packages on ext4, 2 GiB, virtio-blk, QEMU's traces `virtio_blk_handle_read` and `_write`. In between a
/// user logs in, searches packages, starts Python, reads the journal and lists all files.
const BOOT: &str = include_str!("boot.txt");

fn boot() -> Trace {
    let number = |word: &str| word.parse::<u32>().expect("a number");
    let slices = BOOT.split_whitespace().flat_map(|word| {
        let (slice, times) = word.split_once('*').unwrap_or((word, "1"));
        std::iter::repeat_n(number(slice), number(times) as usize)
    });
    trace("recorded boot", slices.collect())
}
