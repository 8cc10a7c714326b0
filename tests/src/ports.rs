//! Ports for programs that cannot take any that is free.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports that the kernel gives to no request for any port: those are above (`net.ipv4.ip_local_port_range`).
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

/// How far apart the first ports of processes are that were started one after the other.
const APART: u32 = 97;

static TAKEN: AtomicU32 = AtomicU32::new(0);

/// A port of 127.0.0.1 that nothing listens at, another one each time: what takes its time to listen there does not lose it to another test.
pub fn free_port() -> u16 {
    loop {
        let number =
            std::process::id().wrapping_mul(APART).wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed));
        let port = (FIRST + number % COUNT) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once() {
        let mut ports: Vec<u16> = (0..100).map(|_| free_port()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert!(ports.len() == 100 && ports[0] >= 20_000 && ports[99] < 32_000);
    }
}
