//! Walks a recording from event to event and builds the states a crash there may leave.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use super::Recording;
use super::atom::Atom;
use super::plan::{self, Applied, CrashOptions, Plan};
use crate::content::Content;
use crate::request::{IoKind, Outcome, Part, Record, Tick};
use crate::rng::{Rng, mix};
use crate::world::{Order, SimStorage, World};

/// One image, or one set of images, that a crash may leave.
#[derive(Clone, Debug)]
pub struct CrashState {
    /// When the machine died.
    pub instant: Tick,
    /// What each disk holds.
    pub disks: Vec<Content>,
    recording: Arc<Recording>,
    atoms: Arc<Vec<Atom>>,
    plan: Plan,
}

impl CrashState {
    /// A new machine with these disks, whose requests end at once.
    pub fn boot(&self, seed: u64) -> (World, Vec<SimStorage>) {
        let world = World::new(seed, Order::Immediate);
        let disks = self.recording.disks.iter().zip(&self.disks);
        let disks = disks
            .map(|((name, capabilities), content)| world.add_disk(name, *capabilities, content.clone()))
            .collect();
        (world, disks)
    }
}

impl fmt::Display for CrashState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "crash at tick {}, applied in order {:?}", self.instant, self.plan.order)?;
        for (index, atom) in self.atoms.iter().enumerate() {
            let fate = match (&self.plan.torn, self.plan.keep.has(index)) {
                (_, false) => "dropped".to_owned(),
                (Some((torn, part)), true) if *torn == index => format!("torn to {}", shown(part)),
                (_, true) => "kept".to_owned(),
            };
            writeln!(f, "  {fate}: {atom}")?;
        }
        Ok(())
    }
}

fn shown(part: &Part) -> String {
    match part {
        Part::All => "all".into(),
        Part::None => "nothing".into(),
        Part::Sectors(sectors) => sectors.iter().take(64).map(|&kept| if kept { '#' } else { '.' }).collect(),
    }
}

/// The states, one after the other; no two with the same bytes and the same acknowledgements.
#[derive(Debug)]
pub struct CrashStates {
    recording: Arc<Recording>,
    options: CrashOptions,
    rng: Rng,
    events: VecDeque<(Tick, Event)>,
    acknowledged: u64,
    durable: Vec<Content>,
    open: Vec<Open>,
    atoms: Arc<Vec<Atom>>,
    instant: Tick,
    plans: VecDeque<Plan>,
    seen: HashSet<u64>,
    built: u64,
}

#[derive(Clone, Debug)]
struct Open {
    record: Arc<Record>,
    completed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Issued(usize),
    /// The last instant at which what a flush covers can still be lost: most is open here.
    BeforeFlushed,
    Completed(usize),
    Acknowledged,
    End,
}

impl CrashStates {
    /// The states of `recording`. `acknowledgements` are the ticks at which a client was informed that
    /// something is durable: from there on the same bytes are judged more strictly.
    pub fn new(recording: &Recording, acknowledgements: &[Tick], options: CrashOptions) -> Self {
        let mut events = Vec::new();
        for (index, record) in recording.records.iter().enumerate() {
            events.push((record.issued, Event::Issued(index)));
            if let Some(at) = record.completed {
                let flush = record.request.kind() == IoKind::Flush && record.outcome == Outcome::Done;
                events.extend(flush.then_some((at, Event::BeforeFlushed)));
                events.push((at, Event::Completed(index)));
            }
        }
        let after = |&&at: &&Tick| at > recording.since && at < recording.end;
        events.extend(acknowledgements.iter().filter(after).map(|&at| (at, Event::Acknowledged)));
        events.push((recording.end, Event::End));
        events.sort_by_key(|(at, _)| *at);
        let mut durable = recording.start.clone();
        durable.iter_mut().for_each(Content::settle);
        Self {
            recording: Arc::new(recording.clone()),
            options,
            rng: Rng::new(options.seed),
            events: events.into(),
            acknowledged: 0,
            durable,
            open: Vec::new(),
            atoms: Arc::default(),
            instant: recording.since,
            plans: plan::extremes(0).into(),
            seen: HashSet::new(),
            built: 0,
        }
    }

    /// States built so far, those with bytes seen before included.
    pub fn built(&self) -> u64 {
        self.built
    }

    fn next_event(&mut self) -> Option<()> {
        let (at, event) = self.events.pop_front()?;
        let records = Arc::clone(&self.recording);
        match event {
            Event::Issued(index) => self.issued(at, &records.records[index]),
            Event::BeforeFlushed => self.plan_everything(at - 1),
            Event::Completed(index) => self.completed(at, &records.records[index]),
            Event::Acknowledged => {
                self.acknowledged += 1;
                self.plan_everything(at);
            }
            Event::End => self.plan_everything(at),
        }
        Some(())
    }

    fn issued(&mut self, at: Tick, record: &Arc<Record>) {
        if !record.request.changes() {
            return;
        }
        self.open.push(Open { record: Arc::clone(record), completed: false });
        self.refresh(at);
        for new in 0..self.atoms.len() {
            if self.atoms[new].record.number == record.number {
                self.plans.extend(plan::with_new(&self.atoms, new, &self.options, &mut self.rng));
            }
        }
    }

    fn completed(&mut self, at: Tick, record: &Arc<Record>) {
        if record.request.changes() {
            if let Some(open) = self.open.iter_mut().find(|open| open.record.number == record.number) {
                open.completed = true;
            }
            self.refresh(at);
        } else if record.outcome == Outcome::Done {
            self.make_durable(record);
            self.refresh(at);
            self.plans.extend(plan::extremes(self.atoms.len()));
        }
    }

    /// What completed before the flush was issued is no longer open.
    fn make_durable(&mut self, flush: &Record) {
        let covered = |open: &Open| {
            open.completed
                && open.record.disk == flush.disk
                && open.record.completed.is_some_and(|at| at < flush.issued)
        };
        let (mut settled, open): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.open).into_iter().partition(covered);
        self.open = open;
        settled.sort_by_key(|open| open.record.completed);
        let durable = &mut self.durable[flush.disk];
        for open in &settled {
            open.record.request.apply(durable, open.record.part());
        }
        durable.settle();
    }

    fn plan_everything(&mut self, at: Tick) {
        self.refresh(at);
        self.plans.extend(plan::everything(&self.atoms, &self.options, &mut self.rng));
    }

    /// Lists the open atoms anew, in the order in which they take effect.
    fn refresh(&mut self, at: Tick) {
        self.instant = at;
        let completed = |open: &Open| if open.completed { open.record.completed } else { None };
        self.open.sort_by_key(|open| (completed(open).unwrap_or(Tick::MAX), open.record.issued));
        let atoms = self.open.iter().flat_map(|open| {
            let part = if open.completed { open.record.part() } else { &Part::All };
            Atom::of(&open.record, part)
        });
        self.atoms = Arc::new(atoms.collect());
    }

    fn build(&self, plan: &Plan) -> Vec<Content> {
        let mut disks = self.durable.clone();
        for index in self.ordered(plan.order) {
            let Some(atom) = self.atoms.get(index).filter(|_| plan.keep.has(index)) else { continue };
            let torn = plan.torn.as_ref().filter(|(torn, _)| *torn == index).map(|(_, part)| part);
            atom.apply(&mut disks[atom.record.disk], torn);
        }
        disks.iter_mut().for_each(Content::trim);
        disks
    }

    fn ordered(&self, order: Applied) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.atoms.len()).collect();
        let in_flight = |index: usize| self.atoms[index].record.completed.is_none_or(|at| at > self.instant);
        match order {
            Applied::Completed => {}
            Applied::Reversed => all.reverse(),
            Applied::PunchesLast => all.sort_by_key(|&index| self.atoms[index].is_punch()),
            Applied::PendingFirst => all.sort_by_key(|&index| !in_flight(index)),
        }
        all
    }

    fn is_new(&mut self, disks: &[Content]) -> bool {
        let bytes = disks.iter().fold(0, |hash, disk| mix(disk.hash() ^ mix(hash)));
        self.seen.insert(mix(bytes ^ self.acknowledged.rotate_left(32)))
    }
}

impl Iterator for CrashStates {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        loop {
            let Some(plan) = self.plans.pop_front() else {
                self.next_event()?;
                continue;
            };
            // Chosen before it is built: building is most of the work.
            let (of, give) = self.options.share;
            if give < of && !self.rng.chance(give, of) {
                continue;
            }
            self.built += 1;
            let disks = self.build(&plan);
            if !self.is_new(&disks) {
                continue;
            }
            let (recording, atoms) = (Arc::clone(&self.recording), Arc::clone(&self.atoms));
            return Some(CrashState { instant: self.instant, disks, recording, atoms, plan });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Content;
    use futures_util::FutureExt;
    use std::collections::BTreeSet;
    use storage::{Capabilities, Hints, IoBytes, Storage};

    fn write(disk: &SimStorage, offset: u64, byte: u8, len: usize) {
        let done =
            disk.write(offset, IoBytes::copy_from(&vec![byte; len]).into(), Hints::NONE).now_or_never();
        done.unwrap().unwrap();
    }

    fn images(world: &World, sectors: u64) -> BTreeSet<Vec<u8>> {
        let states = CrashStates::new(&world.recording(), &[], CrashOptions::default());
        let first_bytes = |state: CrashState| {
            let mut bytes = vec![0xff; sectors as usize * 512];
            state.disks[0].read(0, &mut bytes);
            let mut image: Vec<u8> = bytes.iter().step_by(512).copied().collect();
            image.push((state.disks[0].length() / 512) as u8);
            image
        };
        states.map(first_bytes).collect()
    }

    fn recorded(sectors: u64) -> (World, SimStorage) {
        let world = World::new(1, Order::Immediate);
        let disk = world.add_disk("disk", Capabilities::REGULAR_FILE, Content::zeroed(sectors * 512));
        world.start_recording();
        (world, disk)
    }

    #[test]
    fn without_a_flush_every_subset_of_writes_is_a_state() {
        let (world, disk) = recorded(3);
        for sector in 0..3 {
            write(&disk, sector * 512, 1, 512);
        }
        let expected: BTreeSet<Vec<u8>> =
            (0..8u8).map(|bits| vec![bits & 1, bits >> 1 & 1, bits >> 2, 3]).collect();
        assert_eq!(images(&world, 3), expected);
    }

    #[test]
    fn what_a_flush_covers_is_in_every_later_state_and_before_every_later_write() {
        let (world, disk) = recorded(2);
        write(&disk, 0, 1, 512);
        disk.flush().now_or_never().unwrap().unwrap();
        write(&disk, 512, 2, 512);
        let expected = [vec![0, 0, 2], vec![1, 0, 2], vec![1, 2, 2]];
        assert_eq!(images(&world, 2), expected.into());
    }

    #[test]
    fn a_write_of_several_sectors_is_torn_between_them() {
        let (world, disk) = recorded(2);
        write(&disk, 0, 7, 1024);
        let states = images(&world, 2);
        assert!(states.contains(&vec![7, 0, 2]) && states.contains(&vec![7, 7, 2]), "{states:?}");
    }

    #[test]
    fn growth_and_bytes_survive_apart_and_bytes_beyond_the_end_are_gone() {
        let (world, disk) = recorded(1);
        write(&disk, 512, 5, 512);
        assert_eq!(images(&world, 2), [vec![0, 0, 1], vec![0, 0, 2], vec![0, 5, 2]].into());
    }

    #[test]
    fn a_punch_in_flight_may_land_after_a_flushed_write() {
        let world = World::new(1, Order::Immediate);
        let disk = world.add_disk("disk", Capabilities::REGULAR_FILE, Content::of(&[3; 512]));
        world.start_recording();
        world.hold(|_, request| matches!(request, crate::Request::Discard { .. }));
        let punch = disk.discard(0, 512);
        write(&disk, 0, 9, 512);
        disk.flush().now_or_never().unwrap().unwrap();
        let end = world.tick();
        let states = CrashStates::new(&world.recording(), &[], CrashOptions::default());
        let last: BTreeSet<u8> = states
            .filter(|state| state.instant > end)
            .map(|state| {
                let mut byte = [1];
                state.disks[0].read(0, &mut byte);
                byte[0]
            })
            .collect();
        assert!(last.is_subset(&[0, 9].into()));
        assert_eq!(images(&world, 1), [vec![3, 1], vec![0, 1], vec![9, 1]].into());
        drop(punch);
    }

    #[test]
    fn what_the_walk_calls_durable_is_what_the_live_disk_calls_durable() {
        let (world, disk) = recorded(8);
        let mut rng = Rng::new(4);
        for byte in 1..60 {
            match rng.below(4) {
                0 => disk.flush().now_or_never().unwrap().unwrap(),
                _ => write(&disk, rng.below(6) * 512, byte, 1024),
            }
        }
        let recording = world.recording();
        assert_eq!(recording.durable_at(recording.end)[0].hash(), world.durable(0).hash());
        assert_eq!(recording.current_at(recording.end)[0].hash(), world.current(0).hash());
    }
}
