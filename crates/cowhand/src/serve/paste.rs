//! Lines to paste: how QEMU, qemu-img, nbdcopy and fio reach an export.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Where the server really listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP.
    Tcp(SocketAddr),
}

/// The NBD URI of an export, as libnbd, QEMU and fio read it.
pub fn uri(address: &Address, export: &str, tls: bool) -> String {
    let scheme = if tls { "nbds" } else { "nbd" };
    let export = percent(export.as_bytes(), b"");
    match address {
        Address::Unix(path) => {
            format!("{scheme}+unix:///{export}?socket={}", percent(path_bytes(path), b"/"))
        }
        Address::Tcp(address) => format!("{scheme}://{}/{export}", reachable(*address)),
    }
}

/// The lines for one export. With TLS only the tools that take a URI alone are shown.
pub fn lines(address: &Address, export: &str, tls: bool) -> Vec<(&'static str, String)> {
    let uri = uri(address, export, tls);
    let quoted = quote(&uri);
    let mut lines = vec![("URI", uri.clone())];
    if !tls {
        let drive = format!("file={},format=raw,if=virtio", uri.replace(',', ",,"));
        lines.push(("QEMU", format!("-drive {}", quote(&drive))));
        lines.push(("qemu-img", format!("qemu-img info {quoted}")));
    }
    lines.push(("nbdcopy", format!("nbdcopy --progress {quoted} copy.raw")));
    if !tls {
        lines.push((
            "fio",
            format!(
                "fio --name=read --ioengine=nbd --uri={quoted} --rw=randread --bs=4k --iodepth=16 \
                     --time_based --runtime=10"
            ),
        ));
    }
    lines
}

/// An address that a client on this machine can use: "any" is not one.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn path_bytes(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}

/// Percent-encodes everything that is not unreserved in a URI, or in `kept` (RFC 3986, 2.3).
fn percent(bytes: &[u8], kept: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte) {
            true => text.push(char::from(byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// As one word of a shell.
pub fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~/:%=,+".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_escapes_what_would_end_its_parts() {
        let unix = |path: &str| Address::Unix(PathBuf::from(path));
        let tcp = |address: &str| Address::Tcp(address.parse().unwrap());
        let table = [
            (uri(&unix("/run/a.sock"), "disk", false), "nbd+unix:///disk?socket=/run/a.sock"),
            (
                uri(&unix("/run/a&b c,ü"), "d/é?", false),
                "nbd+unix:///d%2F%C3%A9%3F?socket=/run/a%26b%20c%2C%C3%BC",
            ),
            (uri(&unix("/run/a.sock"), "", false), "nbd+unix:///?socket=/run/a.sock"),
            (uri(&tcp("127.0.0.1:10809"), "disk", false), "nbd://127.0.0.1:10809/disk"),
            (uri(&tcp("0.0.0.0:10809"), "disk", true), "nbds://127.0.0.1:10809/disk"),
            (uri(&tcp("[::]:1"), "disk", false), "nbd://[::1]:1/disk"),
        ];
        for (found, expected) in table {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn lines_survive_the_shell() {
        let lines = lines(&Address::Unix(PathBuf::from("/run/a.sock")), "disk", false);
        let line = |tool| &lines.iter().find(|(name, _)| *name == tool).unwrap().1;
        assert_eq!(line("QEMU"), "-drive 'file=nbd+unix:///disk?socket=/run/a.sock,format=raw,if=virtio'");
        assert_eq!(line("qemu-img"), "qemu-img info 'nbd+unix:///disk?socket=/run/a.sock'");
        assert_eq!(line("nbdcopy"), "nbdcopy --progress 'nbd+unix:///disk?socket=/run/a.sock' copy.raw");
        assert!(line("fio").contains("--uri='nbd+unix:///disk?socket=/run/a.sock'"));
        assert_eq!(quote("it's"), "'it'\\''s'");
    }
}
