//! Several doors on the loops of one process: they share time, memory and the end, and nothing else.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use export::{Ending, HangUp, NoPlace, Removal, Served};

use crate::support::memory_export::{MemoryExport, PAGE};
use crate::support::{Running, wait_until};

const MIB: u64 = 1 << 20;

fn disk() -> Arc<MemoryExport> {
    Arc::new(MemoryExport::new(16 * MIB))
}

fn in_flight(door: &crate::support::line_door::LineDoor) -> u64 {
    door.0.exports().find("disk").expect("an export").counters().snapshot().in_flight
}

#[test]
fn what_is_in_flight_at_any_door_is_answered_before_the_loops_end() {
    let mut running = Running::start();
    let (slow, fast) = (disk(), disk());
    let (one, other) = (running.door(&slow), running.door(&fast));
    slow.hold(0);
    let (mut waiting, mut idle) = (one.connect("disk").unwrap(), other.connect("disk").unwrap());
    waiting.ask(0, 3 * MIB as usize);
    wait_until(|| in_flight(&one) == 1);
    idle.ask(0, PAGE as usize);
    assert_eq!(idle.bytes(PAGE as usize), vec![0; PAGE as usize]);

    running.loops.shutdown().trigger();
    assert!(idle.is_ended(), "who waits for nothing ends at once");
    slow.release();
    assert_eq!(waiting.bytes(3 * MIB as usize).len(), 3 * MIB as usize);
    assert!(waiting.is_ended());
    running.ended().expect("an end in order");
    assert_eq!((one.0.clients(), other.0.clients()), (0, 0));
}

#[test]
fn a_client_lives_on_the_loop_with_the_fewest_whichever_door_it_came_by() {
    let running = Running::start();
    let (one, other) = (running.door(&disk()), running.door(&disk()));
    let mut clients: Vec<_> =
        [&one, &other, &other, &one].iter().map(|door| door.connect("disk").unwrap()).collect();
    let mut places: Vec<_> = clients.iter_mut().map(|client| client.place()).collect();
    places.sort();
    let on = |index: usize| format!("cowhand-loop-{index}\n");
    assert_eq!(places, [on(0), on(0), on(1), on(1)]);
    assert_eq!((one.0.clients(), other.0.clients()), (2, 2));
    for index in [1, 1, 0, 1] {
        let mut chosen = other.connect_on(index, "disk").unwrap();
        assert_eq!(chosen.place(), on(index));
    }
}

#[test]
fn the_clients_of_all_doors_are_in_one_account() {
    let running = Running::start();
    let (slow, fast) = (disk(), disk());
    let (one, other) = (running.door(&slow), running.door(&fast));
    slow.hold(0);
    let mut waiting = one.connect("disk").unwrap();
    waiting.ask(0, 8 * MIB as usize);
    wait_until(|| in_flight(&one) == 1);
    assert!(other.0.costs().held_bytes >= 8 * MIB, "{:?}", other.0.costs());
    slow.release();
    waiting.bytes(8 * MIB as usize);
    wait_until(|| other.0.costs().held_bytes == 0);
}

#[test]
fn who_takes_no_answers_is_cut_off_after_the_grace_and_holds_up_nobody() {
    let mut running = Running::with_grace(Duration::from_millis(50));
    let one = running.door(&disk());
    let mut deaf = one.connect("disk").unwrap();
    deaf.ask(0, 16 * MIB as usize);
    wait_until(|| one.0.exports().find("disk").unwrap().counters().snapshot().read.requests == 1);
    running.loops.shutdown().trigger();
    running.ended().expect("an end in order");
}

#[test]
fn who_comes_after_the_end_is_hung_up_on() {
    let mut running = Running::start();
    let one = running.door(&disk());
    running.loops.shutdown().trigger();
    running.ended().expect("an end in order");
    let mut late = one.connect("disk").unwrap();
    assert!(late.is_ended());
    assert_eq!(one.0.clients(), 0);
    assert_eq!(one.0.exports().find("disk").unwrap().connections(), 0);
}

#[test]
fn an_export_that_one_door_removes_stays_at_the_other() {
    let running = Running::start();
    let shared = disk();
    let (one, other) = (running.door(&shared), running.door(&shared));
    let (mut leaving, mut staying) = (one.connect("disk").unwrap(), other.connect("disk").unwrap());
    shared.hold(0);
    leaving.ask(0, PAGE as usize);
    wait_until(|| in_flight(&one) == 1);
    let removed = one.0.exports().remove("disk", Removal::Hard).expect("it is there");
    assert!(leaving.is_ended(), "a read is given up where its client has to go");
    wait_until(|| removed.connections() == 0);
    assert!(matches!(export::Place::take(removed, 9), Err(NoPlace::TakenAway(_))));
    staying.ask(PAGE, PAGE as usize);
    assert_eq!(staying.bytes(PAGE as usize).len(), PAGE as usize);
}

#[test]
fn what_is_wrong_is_reported_by_its_kind() {
    let running = Running::start();
    let mut broken = MemoryExport::new(MIB);
    broken.bad_page = Some(1);
    let one = running.door(&Arc::new(broken));
    let mut client = one.connect("disk").unwrap();
    client.ask(PAGE, PAGE as usize);
    assert_eq!(client.line(), "I/O\n");
    client.ask(MIB, 1);
    assert_eq!(client.line(), "past the end\n");
    let counted = one.0.exports().find("disk").unwrap().counters().snapshot();
    assert_eq!((counted.read.errors, counted.invalid), (1, 1));
}

struct Gone<'a>(&'a AtomicUsize);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_task_of_a_door_runs_on_every_loop_until_the_end() {
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    static ENDED: AtomicUsize = AtomicUsize::new(0);
    let mut running = Running::start();
    let one = running.door(&disk());
    one.0.on_every_loop(|| async {
        let _gone = Gone(&ENDED);
        BEGUN.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    });
    wait_until(|| BEGUN.load(Ordering::SeqCst) == 2);
    assert_eq!(ENDED.load(Ordering::SeqCst), 0);
    running.loops.shutdown().trigger();
    running.ended().expect("an end in order");
    assert_eq!(ENDED.load(Ordering::SeqCst), 2);
}

struct Silent;

impl HangUp for Silent {
    fn hang_up(&self, _how: Ending) {}
}

#[test]
fn a_panic_on_one_loop_ends_the_clients_of_all() {
    let mut running = Running::start();
    let (one, other) = (running.door(&disk()), running.door(&disk()));
    let mut bystander = other.connect_on(1, "disk").unwrap();
    assert_eq!(bystander.place(), "cowhand-loop-1\n");
    one.0.give_to(0, |_| Served { hang_up: Rc::new(Silent), work: Box::pin(async { panic!("on purpose") }) });
    assert!(bystander.is_ended());
    assert!(running.ended().is_err(), "the panic is not swallowed");
    let mut late = other.connect_on(0, "disk").unwrap();
    assert!(late.is_ended(), "nobody waits for a loop that is gone");
    assert_eq!((one.0.clients(), other.0.clients()), (0, 0));
}
