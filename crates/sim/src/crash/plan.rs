//! Which of the open atoms to keep: all subsets of few, a chosen sample of many.

use smallvec::SmallVec;

use super::atom::Atom;
use crate::request::Part;
use crate::rng::Rng;
use crate::world::random_part;

/// How many crash states to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashOptions {
    /// Up to so many open atoms, every subset is built.
    pub exhaustive_atoms_max: u32,
    /// Beyond that, so many random subsets, besides the single drops, single keeps and prefixes.
    pub samples: u32,
    /// So many ways to tear each request of several sectors.
    pub tears: u32,
    /// Only this share of the states is built, chosen by the seed: (of so many, so many).
    pub share: (u64, u64),
    /// For what is left to chance.
    pub seed: u64,
}

impl Default for CrashOptions {
    fn default() -> Self {
        Self { exhaustive_atoms_max: 10, samples: 64, tears: 8, share: (1, 1), seed: 0 }
    }
}

/// In which order what is kept is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// As it completed; what is in flight comes last.
    Completed,
    /// The other way round.
    Reversed,
    /// As completed, but all punches last.
    PunchesLast,
    /// As completed, but what is in flight comes first.
    PendingFirst,
}

/// One state to build.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub keep: Keep,
    pub order: Applied,
    pub torn: Option<(usize, Part)>,
}

/// A set of atoms, as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keep(SmallVec<[u64; 2]>);

impl Keep {
    fn none(atoms: usize) -> Self {
        Self(SmallVec::from_elem(0, atoms.div_ceil(64)))
    }

    fn by(atoms: usize, mut which: impl FnMut(usize) -> bool) -> Self {
        let mut keep = Self::none(atoms);
        for atom in (0..atoms).filter(|&atom| which(atom)) {
            keep.0[atom / 64] |= 1 << (atom % 64);
        }
        keep
    }

    pub fn has(&self, atom: usize) -> bool {
        self.0.get(atom / 64).is_some_and(|word| word >> (atom % 64) & 1 == 1)
    }

    fn with(mut self, atom: usize) -> Self {
        self.0[atom / 64] |= 1 << (atom % 64);
        self
    }
}

/// Every state at an instant where nothing more is to become open or durable for now.
pub(crate) fn everything(atoms: &[Atom], options: &CrashOptions, rng: &mut Rng) -> Vec<Plan> {
    let n = atoms.len();
    let mut plans = orders(n);
    if n <= options.exhaustive_atoms_max as usize {
        plans.extend((0..1u64 << n).map(|bits| plan(Keep::by(n, |atom| bits >> atom & 1 == 1))));
    } else {
        for only in 0..n {
            plans.push(plan(Keep::by(n, |atom| atom == only)));
            plans.push(plan(Keep::by(n, |atom| atom != only)));
            plans.push(plan(Keep::by(n, |atom| atom < only)));
        }
        plans.extend((0..options.samples).map(|_| sampled(atoms, rng)));
    }
    for atom in 0..n {
        plans.extend(tears(atoms, atom, options, rng));
    }
    plans
}

/// The states that an atom which has just become open adds.
pub(crate) fn with_new(atoms: &[Atom], new: usize, options: &CrashOptions, rng: &mut Rng) -> Vec<Plan> {
    let n = atoms.len();
    let mut plans = vec![plan(Keep::by(n, |_| true)), plan(Keep::by(n, |atom| atom == new))];
    if n <= options.exhaustive_atoms_max as usize {
        let subsets = (0..1u64 << n).filter(|bits| bits >> new & 1 == 1);
        plans.extend(subsets.map(|bits| plan(Keep::by(n, |atom| bits >> atom & 1 == 1))));
    } else {
        plans.extend((0..options.samples / 4).map(|_| plan(sampled(atoms, rng).keep.with(new))));
    }
    plans.extend(tears(atoms, new, options, rng));
    plans
}

/// The two states that always exist: nothing of what is open, and all of it.
pub(crate) fn extremes(n: usize) -> Vec<Plan> {
    vec![plan(Keep::none(n)), plan(Keep::by(n, |_| true))]
}

fn plan(keep: Keep) -> Plan {
    Plan { keep, order: Applied::Completed, torn: None }
}

fn orders(n: usize) -> Vec<Plan> {
    let all = || Keep::by(n, |_| true);
    let orders = [Applied::Completed, Applied::Reversed, Applied::PunchesLast, Applied::PendingFirst];
    orders.into_iter().map(|order| Plan { keep: all(), order, torn: None }).collect()
}

fn sampled(atoms: &[Atom], rng: &mut Rng) -> Plan {
    let n = atoms.len();
    let dense = rng.pick(&[1, 4, 7]);
    let keep = Keep::by(n, |_| rng.chance(dense, 8));
    let order =
        rng.pick(&[Applied::Completed, Applied::Completed, Applied::PunchesLast, Applied::PendingFirst]);
    let victim = rng.index(n);
    let sectors = atoms[victim].sectors_tearable();
    let torn = (sectors > 1 && keep.has(victim))
        .then(|| (victim, within(&atoms[victim], random_part(sectors, rng))));
    Plan { keep, order, torn }
}

/// One atom torn, with all and with none of the others.
fn tears(atoms: &[Atom], torn: usize, options: &CrashOptions, rng: &mut Rng) -> Vec<Plan> {
    let n = atoms.len();
    let sectors = atoms[torn].sectors_tearable();
    if sectors <= 1 {
        return Vec::new();
    }
    let mut parts = Vec::new();
    let cuts = u64::from(options.tears).min(sectors - 1);
    for cut in 0..cuts {
        let at = if cuts == sectors - 1 { cut + 1 } else { 1 + rng.below(sectors - 1) };
        parts.push(if cut % 3 == 2 { Part::suffix(at, sectors) } else { Part::prefix(at, sectors) });
    }
    if cuts > 0 {
        parts.push(random_part(sectors, rng));
    }
    let mut plans = Vec::new();
    for part in parts {
        let part = within(&atoms[torn], part);
        for others in [true, false] {
            let keep = Keep::by(n, |atom| others || atom == torn);
            plans.push(Plan { keep, order: Applied::Completed, torn: Some((torn, part.clone())) });
        }
    }
    plans
}

/// What of `torn` can be there at all: a failed request took effect only in its part.
fn within(atom: &Atom, torn: Part) -> Part {
    match (&atom.part, torn) {
        (Part::Sectors(possible), Part::Sectors(torn)) => Part::Sectors(
            possible.iter().zip(torn.iter()).map(|(&possible, &torn)| possible && torn).collect(),
        ),
        (_, torn) => torn,
    }
}
