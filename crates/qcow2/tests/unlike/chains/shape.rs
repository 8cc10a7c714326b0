//! What unlike chains differ in, and which seed has which: arrays of cases, in each of which each pair of values occurs that can.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use sim::Rng;

/// What cases differ in. Each is a number of one of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    Kind,
    Mode,
    Depth,
    Top,
    Middle,
    Lower,
    Base,
    MiddleLength,
    BaseLength,
    End,
    Target,
    Backing,
    Granularity,
    Bitmap,
    Guests,
    TopPacking,
    MiddlePacking,
    LowerPacking,
    BasePacking,
    TargetPacking,
    Compressed,
}

/// All of them with the names of their values.
const FACTORS: [(Factor, &[&str]); 21] = [
    (Factor::Kind, &KINDS),
    (Factor::Mode, &["background", "write-blocking", "switching"]),
    (Factor::Depth, &["2", "3", "4"]),
    (Factor::Top, &FORMATS),
    (Factor::Middle, &FORMATS),
    (Factor::Lower, &FORMATS),
    (Factor::Base, &FORMATS),
    (Factor::MiddleLength, &LENGTHS),
    (Factor::BaseLength, &LENGTHS),
    (Factor::End, &["whole cluster", "odd sector"]),
    (Factor::Target, &FORMATS),
    (Factor::Backing, &["none", "opened", "named", "named at the end"]),
    (Factor::Granularity, &["512", "4k", "64k", "1M"]),
    (Factor::Bitmap, &["512", "4k", "64k", "1M"]),
    (Factor::Guests, &["write", "zero", "discard", "everything"]),
    (Factor::TopPacking, &PACKINGS),
    (Factor::MiddlePacking, &PACKINGS),
    (Factor::LowerPacking, &PACKINGS),
    (Factor::BasePacking, &PACKINGS),
    (Factor::TargetPacking, &PACKINGS),
    (Factor::Compressed, &["nothing", "the copy", "what guests write", "both"]),
];

const KINDS: [&str; 24] = [
    "commit top",
    "commit several",
    "commit middle",
    "commit several middle",
    "stream",
    "stream to base",
    "stream middle",
    "stream middle to base",
    "mirror full",
    "mirror top",
    "mirror none",
    "backup full",
    "backup top",
    "backup none",
    "backup incremental",
    "flatten",
    "flatten to base",
    "rebase",
    "rebase -u",
    "convert -B",
    "commit tool",
    "commit tool to base",
    "backup tool",
    "compact",
];
const FORMATS: [&str; 12] = [
    "v2 512",
    "v2 64k",
    "512",
    "4k",
    "64k",
    "2M",
    "sub 16k",
    "sub 64k",
    "sub 2M",
    "data file 4k",
    "raw data 64k",
    "raw",
];
const PACKINGS: [&str; 3] = ["no compressed clusters", "zlib", "zstd"];
const LENGTHS: [&str; 5] = ["same", "shorter", "odd shorter", "longer", "odd longer"];

/// What is done to the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    CommitTop,
    CommitSeveral,
    CommitMiddle,
    CommitSeveralMiddle,
    Stream,
    StreamToBase,
    StreamMiddle,
    StreamMiddleToBase,
    MirrorFull,
    MirrorTop,
    MirrorNone,
    BackupFull,
    BackupTop,
    BackupNone,
    BackupIncremental,
    Flatten,
    FlattenToBase,
    Rebase,
    RebaseUnsafe,
    ConvertOver,
    Commit,
    CommitToBase,
    BackupTool,
    Compact,
}

impl Kind {
    const ALL: [Self; KINDS.len()] = [
        Self::CommitTop,
        Self::CommitSeveral,
        Self::CommitMiddle,
        Self::CommitSeveralMiddle,
        Self::Stream,
        Self::StreamToBase,
        Self::StreamMiddle,
        Self::StreamMiddleToBase,
        Self::MirrorFull,
        Self::MirrorTop,
        Self::MirrorNone,
        Self::BackupFull,
        Self::BackupTop,
        Self::BackupNone,
        Self::BackupIncremental,
        Self::Flatten,
        Self::FlattenToBase,
        Self::Rebase,
        Self::RebaseUnsafe,
        Self::ConvertOver,
        Self::Commit,
        Self::CommitToBase,
        Self::BackupTool,
        Self::Compact,
    ];

    /// Layers at least.
    fn depth_min(self) -> u64 {
        match self {
            Self::CommitSeveral
            | Self::CommitMiddle
            | Self::StreamToBase
            | Self::StreamMiddle
            | Self::FlattenToBase
            | Self::CommitToBase => 3,
            Self::CommitSeveralMiddle | Self::StreamMiddleToBase => 4,
            _ => 2,
        }
    }

    /// The disk's uppermost image goes into one below, and guests go on there.
    pub fn is_commit_of_top(self) -> bool {
        matches!(self, Self::CommitTop | Self::CommitSeveral)
    }

    pub fn is_mirror(self) -> bool {
        matches!(self, Self::MirrorFull | Self::MirrorTop | Self::MirrorNone)
    }

    pub fn is_backup(self) -> bool {
        matches!(self, Self::BackupFull | Self::BackupTop | Self::BackupNone | Self::BackupIncremental)
    }

    /// A tool works on images that no other process has open.
    pub fn is_tool(self) -> bool {
        self >= Self::Flatten
    }

    /// There is an image beside the chain that the copy goes to, or that the chain is put over.
    pub fn has_target(self) -> bool {
        self.is_mirror()
            || self.is_backup()
            || matches!(self, Self::Rebase | Self::RebaseUnsafe | Self::ConvertOver | Self::BackupTool)
    }

    /// What is copied may be written compressed: `backup` with `compress`, a mirror to a node with the filter `compress`, `-c` of tools.
    fn may_compress_copy(self) -> bool {
        self.is_mirror()
            || self.is_backup()
            || matches!(self, Self::Flatten | Self::FlattenToBase | Self::Rebase | Self::ConvertOver)
    }

    /// What is copied goes to the uppermost image itself.
    fn copies_to_top(self) -> bool {
        matches!(self, Self::Flatten | Self::FlattenToBase | Self::Rebase)
    }

    /// Guests write to the uppermost image beside the job, or between two runs of the tool.
    fn has_guests(self) -> bool {
        !self.is_tool() || matches!(self, Self::RebaseUnsafe | Self::BackupTool | Self::Compact)
    }

    /// The target holds all of the disk by itself.
    pub fn copies_everything(self) -> bool {
        matches!(self, Self::MirrorFull | Self::BackupFull)
    }
}

/// How compressed clusters of an image are packed, and whether it has any from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// It has none; those that it gets are packed as is usual.
    Plain,
    Zlib,
    Zstd,
}

/// How an image is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    pub cluster: u64,
    pub is_v2: bool,
    pub subclusters: bool,
    pub data_file: bool,
    pub raw_data: bool,
    /// No image at all: bytes in a file.
    pub raw: bool,
    pub packing: Packing,
}

impl Format {
    /// What images are when nothing else is asked for.
    pub const PLAIN: Self = Self::of(4);

    const fn of(number: u64) -> Self {
        let plain = Self {
            cluster: 512,
            is_v2: false,
            subclusters: false,
            data_file: false,
            raw_data: false,
            raw: false,
            packing: Packing::Plain,
        };
        match number {
            0 => Self { is_v2: true, ..plain },
            1 => Self { cluster: 64 << 10, is_v2: true, ..plain },
            2 => plain,
            3 => Self { cluster: 4096, ..plain },
            4 => Self { cluster: 64 << 10, ..plain },
            5 => Self { cluster: 2 << 20, ..plain },
            6 => Self { cluster: 16 << 10, subclusters: true, ..plain },
            7 => Self { cluster: 64 << 10, subclusters: true, ..plain },
            8 => Self { cluster: 2 << 20, subclusters: true, ..plain },
            9 => Self { cluster: 4096, data_file: true, ..plain },
            10 => Self { cluster: 64 << 10, data_file: true, raw_data: true, ..plain },
            _ => Self { raw: true, ..plain },
        }
    }

    /// Whether it may have a backing file.
    fn takes_backing(self) -> bool {
        !self.raw && !self.raw_data
    }

    /// Whether it may have compressed clusters: those of a data file are none.
    pub fn takes_compressed(self) -> bool {
        !self.raw && !self.data_file
    }
}

/// How the target is put over its own backing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    None,
    Opened,
    Named,
    NamedAtTheEnd,
}

/// How a mirror writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Background,
    Blocking,
    Switching,
}

/// The factor that says how the compressed clusters of an image are packed.
fn packing_of(image: Factor) -> Option<Factor> {
    IMAGES.into_iter().find_map(|(factor, packing)| (factor == image).then_some(packing))
}

/// Factors that are formats of images, and those of their compressed clusters.
const IMAGES: [(Factor, Factor); 5] = [
    (Factor::Top, Factor::TopPacking),
    (Factor::Middle, Factor::MiddlePacking),
    (Factor::Lower, Factor::LowerPacking),
    (Factor::Base, Factor::BasePacking),
    (Factor::Target, Factor::TargetPacking),
];

/// A value of each factor; [`NONE`] where it means nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Case([u8; FACTORS.len()]);

const NONE: u8 = u8::MAX;

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for ((factor, names), value) in FACTORS.iter().zip(self.0).filter(|(_, value)| *value != NONE) {
            write!(f, "{factor:?}: {}; ", names[usize::from(value)])?;
        }
        Ok(())
    }
}

impl Case {
    fn get(&self, factor: Factor) -> Option<u64> {
        Some(self.0[factor as usize]).filter(|value| *value != NONE).map(u64::from)
    }

    pub fn kind(&self) -> Kind {
        Kind::ALL[usize::from(self.0[Factor::Kind as usize])]
    }

    pub fn mode(&self) -> Mode {
        match self.get(Factor::Mode) {
            Some(1) => Mode::Blocking,
            Some(2) => Mode::Switching,
            _ => Mode::Background,
        }
    }

    pub fn depth(&self) -> usize {
        2 + self.get(Factor::Depth).unwrap_or(0) as usize
    }

    fn format(&self, factor: Factor) -> Option<Format> {
        let packing = match packing_of(factor).and_then(|packing| self.get(packing)) {
            Some(1) => Packing::Zlib,
            Some(2) => Packing::Zstd,
            _ => Packing::Plain,
        };
        self.get(factor).map(|number| Format { packing, ..Format::of(number) })
    }

    /// What is copied is written compressed.
    pub fn compresses_copy(&self) -> bool {
        matches!(self.get(Factor::Compressed), Some(1 | 3))
    }

    /// Guests write through the filter `compress`.
    pub fn compresses_writes(&self) -> bool {
        matches!(self.get(Factor::Compressed), Some(2 | 3))
    }

    pub fn target(&self) -> Option<Format> {
        self.format(Factor::Target)
    }

    pub fn backing(&self) -> Backing {
        match self.get(Factor::Backing) {
            Some(1) => Backing::Opened,
            Some(2) => Backing::Named,
            Some(3) => Backing::NamedAtTheEnd,
            _ => Backing::None,
        }
    }

    /// The unit in which a job keeps what is to be copied.
    pub fn granularity(&self) -> u64 {
        512 << [0, 3, 7, 11][self.get(Factor::Granularity).unwrap_or(2) as usize]
    }

    pub fn bitmap_granularity(&self) -> u64 {
        512 << [0, 3, 7, 11][self.get(Factor::Bitmap).unwrap_or(2) as usize]
    }

    /// How often guests write, zero and discard.
    pub fn guests(&self) -> (u64, u64, u64) {
        match self.get(Factor::Guests) {
            Some(0) => (8, 1, 0),
            Some(1) => (2, 8, 0),
            Some(2) => (2, 2, 8),
            _ => (4, 4, 4),
        }
    }

    /// Formats and lengths of the layers, from the upper to the lower.
    pub fn layers(&self) -> Vec<(Format, u64)> {
        let size = self.size();
        let length = |factor| match self.get(factor) {
            Some(1) => size / 2 / 4096 * 4096,
            Some(2) => size / 2 / 4096 * 4096 + 3 * 512,
            Some(3) => size + (96 << 10),
            Some(4) => size + (40 << 10) + 512,
            _ => size,
        };
        let mut layers = vec![(self.format(Factor::Top), size)];
        layers.push((self.format(Factor::Middle), length(Factor::MiddleLength)));
        layers.push((self.format(Factor::Lower), size));
        layers.push((self.format(Factor::Base), length(Factor::BaseLength)));
        // A raw file may end inside a sector.
        let ragged = |format: Format, length: u64| match format.raw && length % 4096 == 3 * 512 {
            true => length - 412,
            false => length,
        };
        layers.into_iter().filter_map(|(format, length)| Some((format?, ragged(format?, length)))).collect()
    }

    /// Bytes of the disk: a few clusters of the largest image, or more than one of 2 MiB. Where clusters of 512 bytes are compressed, one of
    /// 2 MiB ends with the disk: four thousand small ones, again after each crash, are most of the time of all cases.
    pub fn size(&self) -> u64 {
        let formats = || IMAGES.into_iter().filter_map(|(image, _)| Some((image, self.format(image)?)));
        let is_written = self.compresses_copy() || self.compresses_writes();
        let packs_small = |(image, format): (Factor, Format)| {
            let gets_some = is_written && matches!(image, Factor::Top | Factor::Target);
            let has_some = format.packing != Packing::Plain;
            format.cluster == 512 && format.takes_compressed() && (has_some || gets_some)
        };
        let clusters = match formats().map(|(_, format)| format.cluster).max().unwrap_or(0) {
            large if large > 1 << 20 && !formats().any(packs_small) => large + (128 << 10),
            _ => 192 << 10,
        };
        clusters + if self.get(Factor::End) == Some(1) { 9 * 512 } else { 0 }
    }

    /// A case with these values, without those that mean nothing in it; `None` if they contradict each other.
    fn of(values: Values) -> Option<Self> {
        let mut case = Self(values);
        let kind = case.kind();
        let depth = if kind == Kind::RebaseUnsafe { 2 } else { case.depth() as u64 };
        let is_shallow = (kind.is_mirror() || kind.is_backup()) && !kind.copies_everything();
        let has_bitmap = matches!(kind, Kind::BackupIncremental | Kind::BackupTool);
        let used = [
            (Factor::Mode, kind.is_mirror() || kind.is_commit_of_top()),
            (Factor::Depth, kind != Kind::RebaseUnsafe),
            (Factor::Middle, depth > 2),
            (Factor::MiddleLength, depth > 2),
            (Factor::Lower, depth > 3),
            (Factor::Target, kind.has_target()),
            (Factor::Backing, (kind.is_mirror() || kind.is_backup()) && kind != Kind::BackupNone),
            (Factor::Granularity, kind.is_mirror() || kind.is_backup()),
            (Factor::Bitmap, has_bitmap),
        ];
        for (factor, _) in used.into_iter().filter(|(_, is_used)| !is_used) {
            case.0[factor as usize] = NONE;
        }
        let is_packed = case.settle_packing();
        let layers = [Factor::Top, Factor::Middle, Factor::Lower].map(|factor| case.format(factor));
        let is_below = layers.into_iter().flatten().all(Format::takes_backing);
        let top = Format::of(case.get(Factor::Top)?);
        let target = match case.target() {
            Some(target) if is_shallow || kind == Kind::ConvertOver => target.takes_backing(),
            Some(target) if case.backing() != Backing::None => target.takes_backing(),
            _ => true,
        };
        let backing = match (case.get(Factor::Backing), kind.copies_everything()) {
            (None, _) => true,
            (Some(_), true) => case.backing() != Backing::NamedAtTheEnd,
            (Some(_), false) => case.backing() != Backing::None,
        };
        // Clients of the disk would see another size.
        let committed_to = match kind {
            Kind::CommitTop if depth > 2 => case.get(Factor::MiddleLength),
            Kind::CommitTop | Kind::CommitSeveral => case.get(Factor::BaseLength),
            _ => None,
        };
        // A version 2 image that becomes longer cannot hide what a longer one below it has there.
        let is_short = |length| matches!(case.get(length), Some(1 | 2));
        let is_v2 = |image| case.format(image).is_some_and(|format| format.is_v2);
        let grows = match kind {
            Kind::CommitTop | Kind::Commit => is_v2(Factor::Middle) && is_short(Factor::MiddleLength),
            Kind::CommitMiddle => is_v2(Factor::Lower),
            _ => false,
        };
        let fits = is_packed
            && depth >= kind.depth_min()
            && !grows
            && is_below
            && target
            && backing
            && !(has_bitmap && top.is_v2)
            && !(kind == Kind::Commit && top.data_file)
            && committed_to.is_none_or(|length| length < 3);
        fits.then_some(case)
    }

    /// Drops what is said of compressed clusters that cannot be; whether the rest can.
    fn settle_packing(&mut self) -> bool {
        let takes = |case: &Self, image| case.format(image).is_some_and(Format::takes_compressed);
        let mut fits = true;
        for (image, packing) in IMAGES {
            match self.format(image) {
                Some(format) if format.takes_compressed() => {
                    fits &= !format.is_v2 || format.packing != Packing::Zstd;
                }
                _ => self.0[packing as usize] = NONE,
            }
        }
        let kind = self.kind();
        let copied_to = if kind.copies_to_top() { Factor::Top } else { Factor::Target };
        let copy = kind.may_compress_copy() && takes(self, copied_to);
        let guests = kind.has_guests() && takes(self, Factor::Top);
        if !copy && !guests {
            self.0[Factor::Compressed as usize] = NONE;
        }
        fits && (copy || !self.compresses_copy()) && (guests || !self.compresses_writes())
    }

    /// One that has this pair, if the generator finds any.
    fn with(pair: Pair, rng: &mut Rng) -> Option<Self> {
        (0..TRIES).find_map(|_| {
            let mut values = FACTORS.map(|(_, names)| rng.below(names.len() as u64) as u8);
            values[usize::from(pair.0.0)] = pair.0.1;
            values[usize::from(pair.1.0)] = pair.1.1;
            Self::of(values).filter(|case| case.has(pair))
        })
    }

    fn has(&self, pair: Pair) -> bool {
        self.0[usize::from(pair.0.0)] == pair.0.1 && self.0[usize::from(pair.1.0)] == pair.1.1
    }

    fn pairs(&self) -> impl Iterator<Item = Pair> + '_ {
        let used = |&factor: &u8| self.0[usize::from(factor)] != NONE;
        let value = |factor: u8| (factor, self.0[usize::from(factor)]);
        let factors = || (0..FACTORS.len() as u8).filter(used);
        factors().flat_map(move |one| {
            let later = (one + 1..FACTORS.len() as u8).filter(used);
            later.map(move |other| (value(one), value(other)))
        })
    }
}

type Values = [u8; FACTORS.len()];

/// A factor and its value, and another.
type Pair = ((u8, u8), (u8, u8));

/// Cases that are made up before a pair counts as impossible.
const TRIES: usize = 3000;
/// Cases with a pair of which the one is taken that has most others.
const CANDIDATES: usize = 24;

/// Seeds of a round. In the cases of each round every pair occurs that can, with other values beside it than in the rounds before.
pub const ROUND: u64 = 480;

/// The cases of a round, and the pairs that occur in them.
struct Array {
    cases: Vec<Case>,
    pairs: BTreeSet<Pair>,
}

impl Array {
    fn new(round: u64) -> Self {
        let mut rng = Rng::new(8 + round);
        let (mut cases, mut covered) = (Vec::new(), BTreeSet::new());
        for pair in every_pair() {
            if covered.contains(&pair) {
                continue;
            }
            let candidates: Vec<Case> = match Case::with(pair, &mut rng) {
                None => continue,
                Some(first) => {
                    let more = (1..CANDIDATES).filter_map(|_| Case::with(pair, &mut rng));
                    more.chain([first]).collect()
                }
            };
            let new = |case: &Case| case.pairs().filter(|pair| !covered.contains(pair)).count();
            let best = candidates.into_iter().max_by_key(new).expect("at least one");
            covered.extend(best.pairs());
            cases.push(best);
        }
        Self { cases, pairs: covered }
    }
}

fn array(round: u64) -> Arc<Array> {
    static ARRAYS: Mutex<BTreeMap<u64, Arc<Array>>> = Mutex::new(BTreeMap::new());
    let mut arrays = ARRAYS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(arrays.entry(round).or_insert_with(|| Arc::new(Array::new(round))))
}

fn every_pair() -> impl Iterator<Item = Pair> {
    let values = |factor: usize| (0..FACTORS[factor].1.len() as u8).map(move |value| (factor as u8, value));
    (0..FACTORS.len()).flat_map(move |one| {
        (one + 1..FACTORS.len())
            .flat_map(move |other| values(one).flat_map(move |a| values(other).map(move |b| (a, b))))
    })
}

/// The case of a seed. Where a round has fewer cases than seeds, its first ones have a second seed.
pub fn case(seed: u64) -> Case {
    let array = array(seed / ROUND);
    array.cases[(seed % ROUND) as usize % array.cases.len()]
}

/// Pairs of values that occur in these seeds, and pairs that can occur in their rounds.
pub fn pairs_covered(seeds: Range<u64>) -> (usize, usize) {
    let rounds = seeds.start / ROUND..seeds.end.div_ceil(ROUND);
    let possible: BTreeSet<Pair> = rounds.flat_map(|round| array(round).pairs.clone()).collect();
    let covered: BTreeSet<Pair> = seeds.flat_map(|seed| case(seed).pairs().collect::<Vec<_>>()).collect();
    (possible.intersection(&covered).count(), possible.len())
}
