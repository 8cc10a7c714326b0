//! Figures of a server that was started with `--metrics 127.0.0.1:0`.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::Server;

/// Where they are served. Waits until the server says so.
pub fn address(server: &mut Server) -> String {
    let address = server.wait_until(|server| {
        let text = server.stdout();
        let line =
            text.lines().find_map(|line| line.strip_prefix("metrics: http://")?.strip_suffix("/metrics"));
        line.map(str::to_owned)
    });
    address.expect("the address of its figures")
}

/// The sum of the figures whose line begins with `name`.
pub fn figure(address: &str, name: &str) -> f64 {
    let mut stream = TcpStream::connect(address).expect("a socket for figures");
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("a question");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let values: Vec<f64> = text
        .lines()
        .filter(|line| line.starts_with(name))
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    assert!(!values.is_empty(), "no figure {name}");
    values.iter().sum()
}
