//! What asking permission costs a request: `cargo run --release -p cowhand-throttle --example front`

use std::time::Instant;

use throttle::{Decision, Group, Limits, Options, Parameter, Request, Setting, Time, Weight};

const REQUESTS: u64 = 20_000_000;

fn limits(given: &[(&str, u64)]) -> Limits {
    let mut options = Options::new();
    for &(name, value) in given {
        if let Some(Setting::Limit(parameter)) = Setting::from_name(name) {
            options.set(parameter, value);
        }
    }
    options.set(Parameter::IopsSize, if given.is_empty() { 0 } else { 4096 });
    options.check().unwrap_or_default()
}

/// Nanoseconds a request, with a request every microsecond of the group's clock.
fn measure(what: &str, limits: Limits, members: u64) {
    let mut group = Group::new(limits, Time::default());
    let members: Vec<_> = (0..members).map(|_| group.join(Weight::default())).collect();
    let (begin, mut waited) = (Instant::now(), 0_u64);
    for number in 0..REQUESTS {
        let member = &members[number as usize % members.len()];
        let now = Time::from_nanos(number * 1000);
        if group.enqueue(member, Request::read(4096), now) != Decision::Now {
            waited += 1;
        }
    }
    let nanos = begin.elapsed().as_nanos() as f64 / REQUESTS as f64;
    println!("{what:45} {nanos:6.1} ns a request, {waited} waited");
}

/// The same with 64 members that all wait, each request drawn and granted.
fn measure_at_limit(rate: u64) {
    let mut group = Group::new(limits(&[("iops", rate)]), Time::default());
    let members: Vec<_> = (0..64).map(|_| group.join(Weight::default())).collect();
    let mut owner = std::collections::HashMap::new();
    let mut granted = Vec::new();
    let mut now = Time::default();
    for (index, member) in members.iter().enumerate() {
        while let Decision::Now = group.enqueue(member, Request::read(4096), now) {}
        if let Decision::Queued { ticket, .. } = group.enqueue(member, Request::read(4096), now) {
            owner.insert(ticket, index);
        }
    }
    let (begin, rounds) = (Instant::now(), REQUESTS / 20);
    let mut passed = 0_u64;
    while passed < rounds {
        granted.clear();
        now = group.poll(now, &mut granted).unwrap_or(now);
        for ticket in granted.drain(..) {
            passed += 1;
            let index = owner.remove(&ticket).unwrap_or(0);
            if let Decision::Queued { ticket, .. } = group.enqueue(&members[index], Request::read(4096), now)
            {
                owner.insert(ticket, index);
            }
        }
    }
    let nanos = begin.elapsed().as_nanos() as f64 / passed as f64;
    println!("{:45} {nanos:6.1} ns a request", "at the limit, 64 members wait");
}

fn main() {
    measure("no limit, 1 member", Limits::default(), 1);
    let one = limits(&[("iops", 100_000_000)]);
    measure("one limit out of reach, 1 member", one, 1);
    measure("one limit out of reach, 64 members", one, 64);
    let four =
        limits(&[("iops_rd", 1 << 40), ("iops_wr", 1 << 40), ("bps_rd", 1 << 45), ("bps_wr", 1 << 45)]);
    measure("four limits out of reach, 64 members", four, 64);
    measure_at_limit(1_000_000);
}
