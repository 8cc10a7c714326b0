//! What is said at the start: each disk, and the lines that reach it.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;

use graph::DiskNode;
use graph::options::Discard;
use graph::size::human_size;
use monitor::inventory::Inventory;
use monitor::inventory::exports::ExportRecord;
use monitor::inventory::vhost_user::VhostDoor;
use monitor::listening::Address;
use monitor::steering::Sockets;
use net::tls::ServerFiles;
use qcow2::cache_sizes::CacheSizes;
use tool::output::printable;

use super::machine_lines;
use super::paste::{self, ClientTls, DIRECTORY_PLACE, HOST_PLACE, Shown};

/// How clients reach the server.
#[derive(Debug)]
pub struct Reach {
    addresses: Vec<(Address, Option<ClientTls>)>,
    /// What stands for what we do not know.
    places: Vec<String>,
}

impl Reach {
    /// Finds out. Certificates are read for it: call it before the file system is given up.
    pub fn new(inventory: &Inventory, tls: Option<&ServerFiles>) -> Self {
        let reached = inventory.doors.addresses().into_iter();
        let addresses: Vec<_> = reached
            .map(|address| {
                let client = tls.map(|files| client_tls(&address, files));
                (address, client)
            })
            .collect();
        let mut places = tls.map_or_else(Vec::new, |files| {
            addresses
                .iter()
                .filter_map(|(_, client)| client.as_ref())
                .flat_map(|client| places(files, client))
                .collect()
        });
        places.dedup();
        Self { addresses, places }
    }
}

/// Prints what is served, and how to reach it; `created` are the exports whose images were made just now.
///
/// # Errors
/// When the output is closed.
pub fn announce(
    out: &mut dyn Write,
    inventory: &Inventory,
    sockets: &Sockets,
    reach: &Reach,
    created: &[String],
) -> io::Result<()> {
    let all = inventory.exports();
    let (exports, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|export| export.is_nbd());
    for export in &exports {
        let node = &export.disk;
        write_disk(out, &export.id, node, created.contains(&export.id))?;
        for (address, tls) in &reach.addresses {
            for (tool, line) in paste::lines(address, shown(export, node, exports.len()), tls.as_ref()) {
                writeln!(out, "  {tool:<9} {line}")?;
            }
        }
        for other in others.iter().filter(|other| Arc::ptr_eq(&other.disk, node)) {
            write_other(out, other)?;
        }
    }
    for place in &reach.places {
        writeln!(out, "TLS: {place}")?;
    }
    if let Some(path) = sockets.control_path() {
        let path = std::path::absolute(path)?;
        writeln!(out, "control: cowhand status {}", paste::quote(&path.to_string_lossy()))?;
    }
    if let Some(metrics) = sockets.metrics() {
        writeln!(out, "metrics: http://{}/metrics", metrics.address)?;
    }
    out.flush()
}

/// How the disk is reached through a door of its own.
fn write_other(out: &mut dyn Write, export: &ExportRecord) -> io::Result<()> {
    if let Some(path) = export.vhost_door().and_then(VhostDoor::path) {
        writeln!(out, "  for a virtual machine with shared memory (vhost-user-blk):")?;
        for (tool, line) in machine_lines::lines(path, &export.id) {
            writeln!(out, "  {tool:<16} {line}")?;
        }
    }
    if let Some(door) = export.fuse_door() {
        let path = paste::quote(&door.path().to_string_lossy());
        let tool = if rustix::process::geteuid().is_root() { "umount" } else { "fusermount3 -u" };
        writeln!(out, "  as a file {path}   (until {tool} {path})")?;
    }
    if let Some(door) = export.ublk_door() {
        writeln!(out, "  as a block device {}", door.path().display())?;
    }
    Ok(())
}

fn write_disk(out: &mut dyn Write, name: &str, node: &DiskNode, created: bool) -> io::Result<()> {
    let created = if created { ", created" } else { "" };
    let read_only = if node.disk.read_only() { ", read-only" } else { "" };
    let (size, path) = (human_size(node.disk.size()), node.path());
    let path = path.to_string_lossy();
    let (name, path) = (printable(name), printable(&path));
    writeln!(out, "{name}: {size}, {path}{created}{read_only}")?;
    match node.disk.status() {
        Some(status) => writeln!(out, "  caches    {}", caches(&status.cache_sizes)),
        None => Ok(()),
    }
}

fn shown<'a>(export: &'a ExportRecord, node: &DiskNode, exports: usize) -> Shown<'a> {
    Shown {
        name: export.entry.name(),
        read_only: export.entry.disk().read_only(),
        discard: node.options().is_some_and(|options| options.layer.discard == Discard::Unmap),
        one_of_several: exports > 1,
    }
}

/// What a client on this machine needs: a name that the certificate is for, and its files where we know them.
fn client_tls(address: &Address, files: &ServerFiles) -> ClientTls {
    let mut names = vec!["localhost".to_owned()];
    if let Address::Tcp(address) = address {
        let ip = paste::reachable(*address).ip();
        // "localhost" leads to these two alone.
        if ip != IpAddr::V4(Ipv4Addr::LOCALHOST) && ip != IpAddr::V6(Ipv6Addr::LOCALHOST) {
            names.clear();
        }
        names.push(ip.to_string());
    }
    names.push(rustix::system::uname().nodename().to_string_lossy().into_owned());
    let host = names.into_iter().find(|name| net::tls::certificate_names(&files.certificate, name));
    let needed = client_files(files);
    let directories = [Some(&files.certificate), files.client_ca.as_ref()].into_iter().flatten();
    let mut directories =
        directories.filter_map(|file| Some(std::path::absolute(file).ok()?.parent()?.to_owned()));
    let directory =
        directories.find(|directory: &PathBuf| needed.iter().all(|name| directory.join(name).exists()));
    ClientTls { host, directory }
}

/// What a client reads from its directory.
fn client_files(files: &ServerFiles) -> &'static [&'static str] {
    match &files.client_ca {
        None => &["ca-cert.pem"],
        Some(_) => &["ca-cert.pem", "client-cert.pem", "client-key.pem"],
    }
}

/// What is to be put in place of what we do not know.
fn places(files: &ServerFiles, client: &ClientTls) -> Vec<String> {
    let mut places = Vec::new();
    if client.directory.is_none() {
        let names = client_files(files).join(", ");
        places.push(format!("for {DIRECTORY_PLACE} put a directory with the client's {names}"));
    }
    if client.host.is_none() {
        let cert = files.certificate.display();
        places
            .push(format!("for {HOST_PLACE} put a name of this machine that the certificate {cert} is for"));
    }
    places
}

/// The cache sizes in use, whatever was asked for.
fn caches(sizes: &CacheSizes) -> String {
    let (l2, slice) = (human_size(sizes.l2_bytes), human_size(sizes.l2_entry_bytes));
    let covers = if sizes.covers_disk { "covers the disk" } else { "less than the disk has" };
    format!("l2 {l2} in slices of {slice} ({covers}), refcounts {}", human_size(sizes.refcount_bytes))
}
