//! Random requests against a flat array.

use std::ops::Range;

use black_box::Random;
use black_box::bytes::are_kept_or_zero;
use black_box::client::{Client, Reply, Request};
use black_box::wire::{Command, FUA, NO_HOLE};

/// Most requests in flight at once; their ranges never touch.
const IN_FLIGHT_MAX: u64 = 8;

/// A disk as it has to be.
#[derive(Debug)]
pub struct Model {
    pub disk: Vec<u8>,
}

#[derive(Debug)]
enum Kind {
    Read,
    Write(Vec<u8>),
    Zero,
    Trim,
}

#[derive(Debug)]
struct Operation {
    kind: Kind,
    range: Range<usize>,
    flags: u16,
}

impl Model {
    /// Does `batches` batches of requests, and compares after each.
    pub fn exercise(&mut self, client: &mut Client, random: &mut Random, batches: usize) {
        for _ in 0..batches {
            let operations = self.choose(random);
            self.run(client, &operations);
            if random.one_in(4) {
                client.flush().expect("flush");
            }
        }
        client.flush().expect("flush");
    }

    /// Compares every byte.
    pub fn compare(&self, found: &[u8], reader: &str) {
        assert_eq!(found.len(), self.disk.len(), "{reader}: another length");
        let differs =
            found.chunks(512).zip(self.disk.chunks(512)).position(|(found, expected)| found != expected);
        if let Some(sector) = differs {
            let bytes = |disk: &[u8]| disk[sector * 512..].iter().take(16).copied().collect::<Vec<u8>>();
            let count = found.chunks(512).zip(self.disk.chunks(512)).filter(|(a, b)| a != b).count();
            panic!(
                "{reader}: {count} sectors differ, the first at {:#x}: found {:02x?}.., expected {:02x?}..",
                sector * 512,
                bytes(found),
                bytes(&self.disk)
            );
        }
    }

    fn choose(&self, random: &mut Random) -> Vec<Operation> {
        let mut chosen: Vec<Operation> = Vec::new();
        for _ in 0..random.between(1, IN_FLIGHT_MAX) {
            let operation = self.operation(random);
            let apart = |other: &Operation| {
                other.range.end <= operation.range.start || operation.range.end <= other.range.start
            };
            if chosen.iter().all(apart) {
                chosen.push(operation);
            }
        }
        chosen
    }

    fn operation(&self, random: &mut Random) -> Operation {
        let disk = self.disk.len() as u64;
        let longest = *random.pick(&[4096, 64 << 10, 64 << 10, disk / 6]);
        let unit = *random.pick(&[1, 512, 512, 4096, 65536]);
        let start = random.below(disk) / unit * unit;
        let len = (random.between(1, longest).next_multiple_of(unit)).min(disk - start);
        let number = |number: u64| usize::try_from(number).expect("a disk that fits in memory");
        let range = number(start)..number(start + len);
        let (kind, flags) = match random.below(10) {
            0..=2 => (Kind::Read, 0),
            3..=6 => (Kind::Write(content(random, range.len())), if random.one_in(6) { FUA } else { 0 }),
            7 => (Kind::Zero, 0),
            8 => (Kind::Zero, NO_HOLE),
            _ => (Kind::Trim, 0),
        };
        Operation { kind, range, flags }
    }

    fn run(&mut self, client: &mut Client, operations: &[Operation]) {
        let cookies: Vec<u64> = operations
            .iter()
            .map(|operation| client.send(&operation.request()).expect("the server is gone"))
            .collect();
        let mut waiting: Vec<_> = cookies.iter().copied().zip(operations).collect();
        while !waiting.is_empty() {
            let reply = client.receive().unwrap_or_else(|error| {
                let left: Vec<String> = waiting.iter().map(|(_, operation)| operation.to_string()).collect();
                panic!("no answer to {}: {error}", left.join(", "))
            });
            let index = waiting.iter().position(|(cookie, _)| *cookie == reply.cookie);
            let (_, operation) = waiting.swap_remove(index.expect("a cookie of ours"));
            self.apply(operation, &reply);
        }
        for operation in operations {
            self.look_again(client, operation);
        }
    }

    fn apply(&mut self, operation: &Operation, reply: &Reply) {
        assert_eq!(reply.error, 0, "{operation} fails");
        let range = operation.range.clone();
        match &operation.kind {
            Kind::Read => assert!(reply.data == self.disk[range], "{operation} reads something else"),
            Kind::Write(data) => self.disk[range].copy_from_slice(data),
            Kind::Zero => self.disk[range].fill(0),
            Kind::Trim => {}
        }
    }

    /// What was changed reads as it should; what was trimmed reads as before or as zeroes, each byte
    /// for itself, and stays so.
    fn look_again(&mut self, client: &mut Client, operation: &Operation) {
        let range = operation.range.clone();
        let len = u32::try_from(range.len()).expect("a short request");
        let found = client.read(range.start as u64, len).expect("read");
        if matches!(operation.kind, Kind::Trim) {
            assert!(
                are_kept_or_zero(&found, &self.disk[range.clone()]),
                "{operation} leaves neither old bytes nor zeroes"
            );
            self.disk[range].copy_from_slice(&found);
        } else {
            assert!(found == self.disk[range], "{operation} is not what is read afterwards");
        }
    }
}

impl Operation {
    fn request(&self) -> Request<'_> {
        let (offset, len) = (self.range.start as u64, u32::try_from(self.range.len()).expect("short"));
        let plain = |command| Request { command, flags: self.flags, offset, len, data: &[] };
        match &self.kind {
            Kind::Read => plain(Command::Read),
            Kind::Write(data) => Request { data, ..plain(Command::Write) },
            Kind::Zero => plain(Command::WriteZeroes),
            Kind::Trim => plain(Command::Trim),
        }
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            Kind::Read => "a read",
            Kind::Write(_) => "a write",
            Kind::Zero => "a zeroing",
            Kind::Trim => "a trim",
        };
        write!(f, "{kind} of {:#x}..{:#x} (flags {})", self.range.start, self.range.end, self.flags)
    }
}

/// Mostly noise, sometimes zeroes (which some modes detect).
fn content(random: &mut Random, len: usize) -> Vec<u8> {
    match random.below(6) {
        0 => vec![0; len],
        1 => vec![u8::try_from(random.between(1, 255)).expect("a byte"); len],
        _ => random.bytes(len),
    }
}
