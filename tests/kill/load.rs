//! One connection that keeps the server busy until it dies.

use std::collections::HashMap;
use std::io;
use std::sync::{Condvar, Mutex};

use black_box::client::Request;
use black_box::wire::{Command, FUA};
use black_box::{Client, Random};

use super::ledger::{BLOCK_BYTES, Change, Ledger, stamp_block};

/// Requests in flight on each connection.
const DEPTH: usize = 8;

/// What connections share.
#[derive(Debug)]
pub struct Shared {
    pub ledger: Mutex<Ledger>,
    /// Notified of each acknowledgement.
    pub progress: Condvar,
    /// Every acknowledged write is durable in this mode.
    pub writethrough: bool,
    /// Connections; each has its own blocks.
    pub connections: usize,
}

/// A request on its way.
enum Waiting {
    Block(usize),
    /// Sent when so many acknowledgements had arrived.
    Flush(u64),
}

/// A connection at work.
pub struct Load<'a> {
    pub shared: &'a Shared,
    pub client: Client,
    pub random: Random,
    pub connection: usize,
    waiting: HashMap<u64, Waiting>,
}

impl<'a> Load<'a> {
    pub fn new(shared: &'a Shared, client: Client, random: Random, connection: usize) -> Self {
        Self { shared, client, random, connection, waiting: HashMap::new() }
    }

    /// Works until the connection breaks.
    pub fn run(mut self) {
        while self.step().is_ok() {}
        self.shared.progress.notify_all();
    }

    fn step(&mut self) -> io::Result<()> {
        while self.waiting.len() < DEPTH {
            self.send_one()?;
        }
        let reply = self.client.receive()?;
        assert_eq!(reply.error, 0, "a request fails");
        let mut ledger = self.shared.ledger.lock().expect("no panic elsewhere");
        match self.waiting.remove(&reply.cookie).expect("a cookie of ours") {
            Waiting::Block(block) => ledger.acknowledge(block),
            Waiting::Flush(acknowledgements) => ledger.flush(acknowledgements),
        }
        drop(ledger);
        self.shared.progress.notify_all();
        Ok(())
    }

    fn send_one(&mut self) -> io::Result<()> {
        if self.random.one_in(24) {
            let acknowledgements = self.shared.ledger.lock().expect("no panic elsewhere").acknowledgements();
            let cookie = self.client.send(&Request::flush())?;
            self.waiting.insert(cookie, Waiting::Flush(acknowledgements));
            return Ok(());
        }
        let block = self.free_block();
        let fua = self.random.one_in(10);
        let kind = self.random.below(12);
        let (change, data) = {
            let mut ledger = self.shared.ledger.lock().expect("no panic elsewhere");
            let (change, data) = match kind {
                0 => (Change::Trim, Vec::new()),
                1 => (Change::Zero, Vec::new()),
                _ => {
                    let version = ledger.next_version();
                    (Change::Write(version), stamp_block(block, version))
                }
            };
            ledger.send(block, change, fua || self.shared.writethrough);
            (change, data)
        };
        let command = match change {
            Change::Write(_) => Command::Write,
            Change::Zero => Command::WriteZeroes,
            Change::Trim => Command::Trim,
        };
        let (flags, offset) = (if fua { FUA } else { 0 }, (block * BLOCK_BYTES) as u64);
        let len = u32::try_from(BLOCK_BYTES).expect("small");
        let cookie = self.client.send(&Request { command, flags, offset, len, data: &data })?;
        self.waiting.insert(cookie, Waiting::Block(block));
        Ok(())
    }

    /// One of our blocks with no request in flight; some are visited more often.
    fn free_block(&mut self) -> usize {
        let blocks = self.shared.ledger.lock().expect("no panic elsewhere").blocks();
        let own = (blocks / self.shared.connections) as u64;
        loop {
            let among = if self.random.one_in(2) { own } else { (own / 16).max(1) };
            let index = usize::try_from(self.random.below(among)).expect("small");
            let block = index * self.shared.connections + self.connection;
            let busy = self
                .waiting
                .values()
                .any(|waiting| matches!(waiting, Waiting::Block(busy) if *busy == block));
            if !busy {
                return block;
            }
        }
    }
}
