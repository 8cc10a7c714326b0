//! Limits: as a drive's options, explained, and kept while requests come.

use std::ffi::OsStr;

use graph::drive::parse_drive;
use graph::options::DiskOptions;
use throttle::{Decision, Group, Limits, Names, Options, RATE_MAX, Request, Setting, Time, Weight};

use crate::input::Input;

/// Options of a case at most: each of them, and some twice.
const OPTIONS_MAX: u64 = 24;

/// Requests of a case at most.
const REQUESTS_MAX: u32 = 256;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let names: Vec<&Names> = Setting::all().collect();
    let mut options = Options::new();
    let mut drive = "file=x".to_owned();
    for _ in 0..input.below(OPTIONS_MAX) {
        let names = *input.pick(&names);
        let value = value(&mut input);
        match names.setting {
            Setting::Limit(parameter) if options.get(parameter).is_some() => continue,
            Setting::Limit(parameter) => _ = options.set(parameter, value),
            Setting::Group if options.group.is_some() => continue,
            Setting::Group => options.group = Some(value.to_string()),
            Setting::Weight if options.weight.is_some() => continue,
            Setting::Weight => match Weight::new(value) {
                Ok(weight) => options.weight = Some(weight),
                Err(_) => continue,
            },
        }
        let name = if input.flag() { names.drive } else { names.legacy };
        drive += &format!(",{name}={value}");
    }
    let tree = parse_drive(OsStr::new(&drive), |_| false).expect("names and numbers");
    let typed = DiskOptions::of_tree(tree).map(|disk| disk.throttling);
    match options.check() {
        Err(error) => {
            assert!(typed.is_err(), "{drive}: {error}");
            assert!(!error.to_string().is_empty());
        }
        Ok(limits) => {
            let typed = typed.expect("limits that hold");
            assert_eq!(typed.limits.unwrap_or_default(), limits, "{drive}");
            assert_eq!(
                (typed.group, typed.weight),
                (options.group.clone(), options.weight.unwrap_or_default())
            );
            assert_eq!(limits.options().check(), Ok(limits), "written down and read again");
            let explained = throttle::explain(&options).expect("limits that hold");
            assert!(!explained.text().is_empty());
            keep(limits, &mut input);
        }
    }
}

/// Requests of three members; a waiting request goes at the time that it was given.
fn keep(limits: Limits, input: &mut Input<'_>) {
    let mut now = Time::default();
    let mut group = Group::new(limits, now);
    let members = [1, 100, 10_000].map(|weight| group.join(Weight::new(weight).expect("a weight")));
    let (mut waiting, mut granted) = (0, Vec::new());
    for _ in 0..REQUESTS_MAX {
        if input.is_empty() {
            break;
        }
        let bytes = value(input);
        let request = if input.flag() { Request::read(bytes) } else { Request::write(bytes) };
        match group.enqueue(input.pick(&members), request, now) {
            Decision::Now => {}
            Decision::Queued { wake, .. } => {
                assert!(wake >= now);
                waiting += 1;
            }
        }
        if let Some(piece) = limits.piece_bytes(request.direction) {
            assert!(piece > 0);
        }
        let next = group.poll(now, &mut granted);
        waiting -= std::mem::take(&mut granted).len();
        assert_eq!(next.is_some(), waiting > 0);
        if let Some(next) = next.filter(|_| input.flag()) {
            now = next;
        }
    }
    group.set_limits(Limits::default(), now);
    assert_eq!(group.poll(now, &mut granted), None);
    assert_eq!(granted.len(), waiting, "without limits nobody waits");
}

/// Numbers around the bounds, and any other.
fn value(input: &mut Input<'_>) -> u64 {
    match input.byte() % 8 {
        0 => 0,
        1 => 1,
        2 => input.below(100),
        3 => input.number(2),
        4 => input.number(4),
        5 => RATE_MAX - input.below(2) + input.below(3),
        6 => u64::from(u32::MAX) + input.below(3) - 1,
        _ => input.number(8),
    }
}
