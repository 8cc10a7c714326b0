//! Clients in a closed loop on a simulated clock: each keeps `depth` requests in flight, and sends
//! the next one `latency` after one was let through.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use throttle::{
    Decision, Direction, Group, Limits, MemberId, Options, Request, Setting, Ticket, Time, Weight,
};

pub const SECOND: u64 = 1_000_000_000;

/// Limits by option name.
pub fn limits(given: &[(&str, u64)]) -> Limits {
    let mut options = Options::new();
    for &(name, value) in given {
        let Some(Setting::Limit(parameter)) = Setting::from_name(name) else { panic!("{name} is no limit") };
        options.set(parameter, value);
    }
    options.check().expect("limits that keep the rules")
}

/// What a client asks for, by the number of the request.
pub type Pattern = fn(u64) -> Request;

/// A client's habits.
#[derive(Clone, Copy)]
pub struct Load {
    pub pattern: Pattern,
    pub depth: u64,
    pub latency: Duration,
    /// Sends nothing from here on.
    pub until: u64,
}

impl Load {
    pub fn new(pattern: Pattern, depth: u64) -> Self {
        Self { pattern, depth, latency: Duration::from_micros(5), until: u64::MAX }
    }
}

/// A request that was let through.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    pub time: u64,
    pub client: usize,
    pub request: Request,
}

struct Client {
    member: MemberId,
    load: Load,
    sent: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send(usize),
    Timer,
}

pub struct World {
    pub group: Group,
    pub passes: Vec<Pass>,
    clients: Vec<Client>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    events_made: u64,
    waiting: HashMap<Ticket, (usize, Request)>,
    /// The same, per client and direction in the order in which they were drawn.
    lines: HashMap<(usize, Direction), VecDeque<Ticket>>,
    timer: Option<u64>,
    timer_late_max: u64,
    random: u64,
    now: u64,
}

impl World {
    /// A world whose timers ring up to `timer_late_max` late.
    pub fn new(limits: Limits, timer_late_max: Duration) -> Self {
        Self {
            group: Group::new(limits, Time::default()),
            passes: Vec::new(),
            clients: Vec::new(),
            events: BinaryHeap::new(),
            events_made: 0,
            waiting: HashMap::new(),
            lines: HashMap::new(),
            timer: None,
            timer_late_max: timer_late_max.as_nanos() as u64,
            random: 0x9e37_79b9_7f4a_7c15,
            now: 0,
        }
    }

    /// Adds a client that starts sending now.
    pub fn add(&mut self, weight: u64, load: Load) -> usize {
        let member = self.group.join(Weight::new(weight).expect("a weight in range"));
        let client = self.clients.len();
        self.clients.push(Client { member, load, sent: 0 });
        for _ in 0..load.depth {
            self.at(self.now, Event::Send(client));
        }
        client
    }

    pub fn now(&self) -> Time {
        Time::from_nanos(self.now)
    }

    pub fn group_and_member(&mut self, client: usize) -> (&mut Group, &MemberId) {
        (&mut self.group, &self.clients[client].member)
    }

    /// Lets the client's requests go until `end_drain`, as before a snapshot.
    pub fn drain(&mut self, client: usize) {
        let now = self.now();
        let mut released = Vec::new();
        self.group.drain(&self.clients[client].member, now, &mut released);
        self.let_go(released);
    }

    pub fn end_drain(&mut self, client: usize) {
        self.group.end_drain(&self.clients[client].member);
    }

    /// The client's disk goes away.
    pub fn leave(&mut self, client: usize) {
        let now = self.now();
        self.clients[client].load.until = 0;
        let substitute = self.group.join(Weight::default());
        let member = std::mem::replace(&mut self.clients[client].member, substitute);
        let mut released = Vec::new();
        self.group.leave(&member, now, &mut released);
        self.let_go(released);
    }

    pub fn sent(&self, client: usize) -> u64 {
        self.clients[client].sent
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Changes the limits as an operator does.
    pub fn set_limits(&mut self, limits: Limits) {
        self.group.set_limits(limits, self.now());
        self.poll();
    }

    /// Lets time pass until `end`.
    pub fn run_until(&mut self, end: u64) {
        while let Some(&Reverse((time, _, event))) = self.events.peek() {
            if time > end {
                break;
            }
            self.events.pop();
            self.now = time;
            match event {
                Event::Send(client) => self.send(client),
                Event::Timer => {
                    if self.timer == Some(time) {
                        self.timer = None;
                        self.poll();
                    }
                }
            }
        }
        self.now = end;
    }

    fn send(&mut self, client: usize) {
        let now = self.now();
        let sender = &mut self.clients[client];
        if self.now >= sender.load.until {
            return;
        }
        let request = (sender.load.pattern)(sender.sent);
        sender.sent += 1;
        match self.group.enqueue(&sender.member, request, now) {
            Decision::Now => {
                let line = self.lines.entry((client, request.direction)).or_default();
                assert!(line.is_empty(), "overtook an earlier request of its disk");
                self.pass(client, request);
            }
            Decision::Queued { ticket, wake } => {
                assert!(self.waiting.insert(ticket, (client, request)).is_none(), "a ticket drawn twice");
                self.lines.entry((client, request.direction)).or_default().push_back(ticket);
                self.arm(wake);
            }
        }
    }

    fn poll(&mut self) {
        let mut granted = Vec::new();
        let wake = self.group.poll(self.now(), &mut granted);
        self.let_go(granted);
        if let Some(wake) = wake {
            self.arm(wake);
        }
    }

    fn let_go(&mut self, tickets: Vec<Ticket>) {
        for ticket in tickets {
            let (client, request) = self.waiting.remove(&ticket).expect("a ticket that waits");
            let line = self.lines.entry((client, request.direction)).or_default();
            assert_eq!(line.pop_front(), Some(ticket), "the oldest of its disk and direction");
            self.pass(client, request);
        }
    }

    fn pass(&mut self, client: usize, request: Request) {
        self.passes.push(Pass { time: self.now, client, request });
        let latency = self.clients[client].load.latency.as_nanos() as u64;
        self.at(self.now + latency, Event::Send(client));
    }

    fn arm(&mut self, wake: Time) {
        let late = if self.timer_late_max == 0 { 0 } else { self.random() % self.timer_late_max };
        let time = wake.as_nanos().max(self.now).saturating_add(late);
        if self.timer.is_none_or(|armed| time < armed) {
            self.timer = Some(time);
            self.at(time, Event::Timer);
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.events_made += 1;
        self.events.push(Reverse((time, self.events_made, event)));
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Sum over what passed in `[from, until)`.
    pub fn sum(&self, from: u64, until: u64, measure: impl Fn(&Pass) -> u64) -> u64 {
        self.passes.iter().filter(|pass| (from..until).contains(&pass.time)).map(measure).sum()
    }

    /// Sums per client over what passed in `[from, until)`.
    pub fn shares(&self, from: u64, until: u64, measure: impl Fn(&Pass) -> u64) -> Vec<u64> {
        let mut shares = vec![0; self.clients.len()];
        for pass in self.passes.iter().filter(|pass| (from..until).contains(&pass.time)) {
            shares[pass.client] += measure(pass);
        }
        shares
    }
}

pub fn requests(_: &Pass) -> u64 {
    1
}

pub fn bytes(pass: &Pass) -> u64 {
    pass.request.bytes
}

/// `found` is within `tolerance` (a fraction) of `expected`.
pub fn assert_close(found: f64, expected: f64, tolerance: f64, what: &str) {
    let error = (found - expected).abs() / expected;
    assert!(error <= tolerance, "{what}: {found} instead of {expected}, off by {:.2} %", error * 100.0);
}
