//! Lines to paste: how QEMU, libvirt, qemu-img, nbdcopy and fio reach an export.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use monitor::listening::Address;
use monitor::socket_path::file_name;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use super::libvirt_xml;

/// What a client needs to come in over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// A name of this machine that the certificate is for.
    pub host: Option<String>,
    /// The directory with the client's files, as libnbd and QEMU read them.
    pub directory: Option<PathBuf>,
}

/// What stands in a line for a host name that we do not know.
pub const HOST_PLACE: &str = "HOST";

/// What stands in a line for a directory that we do not know.
pub const DIRECTORY_PLACE: &str = "DIR";

/// An export, as far as the lines depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// What clients call it.
    pub name: &'a str,
    /// Clients may not write.
    pub read_only: bool,
    /// What clients discard gives its space back.
    pub discard: bool,
    /// It is one of several: what is copied from it goes to a file of its own.
    pub one_of_several: bool,
}

/// The lines for one export: the name of a tool, and what to paste.
pub fn lines(address: &Address, export: Shown<'_>, tls: Option<&ClientTls>) -> Vec<(&'static str, String)> {
    let uri = uri(address, export.name, tls);
    let quoted = quote(&uri);
    let copy = match export.one_of_several {
        false => "copy.raw".to_owned(),
        true => format!("copy-{}.raw", file_name(export.name)),
    };
    let nbdcopy = format!("nbdcopy --progress {quoted} {copy}");
    let libvirt = libvirt_xml::nbd(address, export, tls);
    if let Some(tls) = tls {
        return vec![
            ("URI", uri),
            ("QEMU", qemu_tls(address, export, tls)),
            ("libvirt", libvirt),
            ("qemu-img", qemu_img_tls(address, export, tls)),
            ("nbdcopy", nbdcopy),
            // Not fio: it lets libnbd read no files of certificates.
        ];
    }
    let drive = format!("file={},{}", uri.replace(',', ",,"), device(export));
    let fio = format!(
        "fio --name=read --ioengine=nbd --uri={quoted} --rw=randread --bs=4k --iodepth=16 --time_based --runtime=10"
    );
    vec![
        ("URI", uri),
        ("QEMU", format!("-drive {}", quote(&drive))),
        ("libvirt", libvirt),
        ("qemu-img", format!("qemu-img info {quoted}")),
        ("nbdcopy", nbdcopy),
        ("fio", fio),
    ]
}

/// The NBD URI of an export, as libnbd, QEMU and fio read it.
fn uri(address: &Address, export: &str, tls: Option<&ClientTls>) -> String {
    let export = percent(export.as_bytes(), &UNRESERVED);
    let scheme = if tls.is_some() { "nbds" } else { "nbd" };
    let certificates =
        tls.map(|tls| format!("tls-certificates={}", percent(path_bytes(&directory(tls)), &OF_PATHS)));
    match address {
        Address::Unix(path) => {
            let certificates = certificates.map_or(String::new(), |certificates| format!("&{certificates}"));
            format!("{scheme}+unix:///{export}?socket={}{certificates}", percent(path_bytes(path), &OF_PATHS))
        }
        Address::Tcp(address) => {
            let certificates = certificates.map_or(String::new(), |certificates| format!("?{certificates}"));
            let place = match tls {
                None => reachable(*address).to_string(),
                Some(tls) => format!("{}:{}", bracketed(host(tls)), address.port()),
            };
            format!("{scheme}://{place}/{export}{certificates}")
        }
    }
}

/// What QEMU is to know of the disk. Without `read-only=on` it refuses an export that cannot be written; without `discard=unmap` what
/// the guest trims goes no further than QEMU.
fn device(export: Shown<'_>) -> String {
    let read_only = if export.read_only { ",read-only=on" } else { "" };
    let discard = if export.discard && !export.read_only { ",discard=unmap" } else { "" };
    format!("format=raw,if=virtio{read_only}{discard}")
}

/// QEMU's options for a TLS client; its URIs know no TLS.
fn qemu_tls(address: &Address, export: Shown<'_>, tls: &ClientTls) -> String {
    let id = format!("tls-{}", file_name(export.name));
    let drive = format!("{},{}", connection("file.", address, export, tls, &id), device(export));
    format!("-object {} -drive {}", quote(&credentials(&id, tls)), quote(&drive))
}

fn qemu_img_tls(address: &Address, export: Shown<'_>, tls: &ClientTls) -> String {
    let options = connection("", address, export, tls, "tls");
    format!("qemu-img info --object {} --image-opts {}", quote(&credentials("tls", tls)), quote(&options))
}

fn credentials(id: &str, tls: &ClientTls) -> String {
    format!("tls-creds-x509,id={id},endpoint=client,dir={}", doubled(&directory(tls).to_string_lossy()))
}

/// Options of QEMU's NBD driver, each after `prefix`.
fn connection(prefix: &str, address: &Address, export: Shown<'_>, tls: &ClientTls, id: &str) -> String {
    let mut options = vec![("driver", "nbd".to_owned())];
    match address {
        Address::Unix(path) => {
            options.push(("server.type", "unix".to_owned()));
            options.push(("server.path", path.to_string_lossy().into_owned()));
            options.push(("tls-hostname", host(tls).to_owned()));
        }
        Address::Tcp(address) => {
            options.push(("server.type", "inet".to_owned()));
            options.push(("server.host", host(tls).to_owned()));
            options.push(("server.port", address.port().to_string()));
        }
    }
    options.push(("export", export.name.to_owned()));
    options.push(("tls-creds", id.to_owned()));
    let options: Vec<_> =
        options.into_iter().map(|(name, value)| format!("{prefix}{name}={}", doubled(&value))).collect();
    options.join(",")
}

/// The name that the certificate is for, or what stands for it.
pub fn host(tls: &ClientTls) -> &str {
    tls.host.as_deref().unwrap_or(HOST_PLACE)
}

fn directory(tls: &ClientTls) -> PathBuf {
    tls.directory.clone().unwrap_or_else(|| PathBuf::from(DIRECTORY_PLACE))
}

/// A host as part of a URI.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// As a value among QEMU's options.
fn doubled(text: &str) -> String {
    text.replace(',', ",,")
}

/// An address that a client on this machine can use: "any" is not one.
pub fn reachable(address: SocketAddr) -> SocketAddr {
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

/// What is unreserved in a URI (RFC 3986, 2.3).
const UNRESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same in paths.
const OF_PATHS: AsciiSet = UNRESERVED.remove(b'/');

fn percent(bytes: &[u8], encoded: &'static AsciiSet) -> String {
    percent_encode(bytes, encoded).to_string()
}

/// As one word of a shell.
pub fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/:%=,+".contains(c);
    // zsh replaces a word that begins with an equals sign.
    match !text.is_empty() && !text.starts_with('=') && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str) -> Shown<'_> {
        Shown { name, read_only: false, discard: false, one_of_several: false }
    }

    fn unix(path: &str) -> Address {
        Address::Unix(PathBuf::from(path))
    }

    fn line(lines: &[(&str, String)], tool: &str) -> String {
        lines.iter().find(|(name, _)| *name == tool).unwrap().1.clone()
    }

    #[test]
    fn a_uri_escapes_what_would_end_its_parts() {
        let tcp = |address: &str| Address::Tcp(address.parse().unwrap());
        let tls = ClientTls { host: Some("localhost".into()), directory: Some("/etc/pki&x".into()) };
        let unknown = ClientTls { host: None, directory: None };
        let v6 = ClientTls { host: Some("::1".into()), ..tls.clone() };
        let table = [
            (uri(&unix("/run/a.sock"), "disk", None), "nbd+unix:///disk?socket=/run/a.sock"),
            (
                uri(&unix("/run/a&b c,ü"), "d/é?", None),
                "nbd+unix:///d%2F%C3%A9%3F?socket=/run/a%26b%20c%2C%C3%BC",
            ),
            (uri(&unix("/run/a.sock"), "", None), "nbd+unix:///?socket=/run/a.sock"),
            (
                uri(&unix("/run/a.sock"), "d", Some(&tls)),
                "nbds+unix:///d?socket=/run/a.sock&tls-certificates=/etc/pki%26x",
            ),
            (uri(&tcp("127.0.0.1:10809"), "disk", None), "nbd://127.0.0.1:10809/disk"),
            (
                uri(&tcp("0.0.0.0:1"), "disk", Some(&tls)),
                "nbds://localhost:1/disk?tls-certificates=/etc/pki%26x",
            ),
            (uri(&tcp("0.0.0.0:1"), "disk", Some(&unknown)), "nbds://HOST:1/disk?tls-certificates=DIR"),
            (uri(&tcp("[::]:1"), "disk", Some(&v6)), "nbds://[::1]:1/disk?tls-certificates=/etc/pki%26x"),
            (uri(&tcp("[::]:1"), "disk", None), "nbd://[::1]:1/disk"),
        ];
        for (found, expected) in table {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn lines_survive_the_shell() {
        let lines = lines(&unix("/run/a.sock"), shown("disk"), None);
        let line = |tool| line(&lines, tool);
        assert_eq!(line("QEMU"), "-drive 'file=nbd+unix:///disk?socket=/run/a.sock,format=raw,if=virtio'");
        assert_eq!(line("qemu-img"), "qemu-img info 'nbd+unix:///disk?socket=/run/a.sock'");
        assert_eq!(line("nbdcopy"), "nbdcopy --progress 'nbd+unix:///disk?socket=/run/a.sock' copy.raw");
        assert!(line("fio").contains("--uri='nbd+unix:///disk?socket=/run/a.sock'"));
        assert_eq!(quote("it's"), "'it'\\''s'");
        assert_eq!((quote("~x"), quote("=x")), ("'~x'".to_owned(), "'=x'".to_owned()));
    }

    #[test]
    fn qemu_hears_what_it_may_do_with_the_disk() {
        let qemu = |shown| line(&lines(&unix("/s"), shown, None), "QEMU");
        let ends = |shown, end: &str| assert!(qemu(shown).ends_with(end), "{}", qemu(shown));
        ends(Shown { discard: true, ..shown("d") }, ",if=virtio,discard=unmap'");
        ends(Shown { discard: true, read_only: true, ..shown("d") }, ",if=virtio,read-only=on'");
        let several = Shown { one_of_several: true, ..shown("aa/d") };
        assert!(line(&lines(&unix("/s"), several, None), "nbdcopy").ends_with(" copy-aa_d.raw"));
    }

    #[test]
    fn over_tls_qemu_gets_options_in_which_commas_are_doubled() {
        let tls = ClientTls { host: Some("localhost".into()), directory: Some("/a,b".into()) };
        let lines = lines(&unix("/s,x"), shown("d,e"), Some(&tls));
        assert_eq!(
            line(&lines, "QEMU"),
            "-object tls-creds-x509,id=tls-d_e,endpoint=client,dir=/a,,b -drive file.driver=nbd,file.server.type=unix,\
             file.server.path=/s,,x,file.tls-hostname=localhost,file.export=d,,e,file.tls-creds=tls-d_e,format=raw,if=virtio"
        );
        assert!(lines.iter().all(|(tool, _)| *tool != "fio"));
    }
}
