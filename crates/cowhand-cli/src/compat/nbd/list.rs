//! `qemu-nbd -L`: what a server has.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use catalog::nbd_exports;
use remote::nbd::{Credentials, ExportName, ListedExport, Listing, NamedTls, Server};
use tool::failure::Failure;
use tool::output::printable;

use super::args::Args;
use crate::copying;
use crate::objects;

/// What the bits of an export's flags are called.
const FLAGS: [(u16, &str); 12] = [
    (1, "readonly"),
    (2, "flush"),
    (3, "fua"),
    (4, "rotational"),
    (5, "trim"),
    (6, "zeroes"),
    (7, "df"),
    (8, "multi"),
    (9, "resize"),
    (10, "cache"),
    (11, "fast-zero"),
    (12, "block-status-payload"),
];

/// Lists the exports.
///
/// # Errors
/// When the server cannot be asked.
pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let objects: Vec<OsString> = args.objects.iter().map(OsString::from).collect();
    objects::add_all(&objects)?;
    let server = match &args.socket {
        Some(path) => Server::Unix(path.clone()),
        None => Server::Tcp { host: args.bind.clone(), port: args.port },
    };
    let tls = args
        .tls_creds
        .clone()
        .map(|id| NamedTls { credentials: Credentials::Id(id), hostname: args.tls_hostname.clone() });
    let name = ExportName { server, export: String::new(), tls };
    let listed = copying::reactor()?.run(nbd_exports(name));
    let listing = listed.map_err(|error| Failure::because("cannot list exports", &error))?;
    write(out, &listing)?;
    Ok(ExitCode::SUCCESS)
}

fn write(out: &mut dyn Write, listing: &Listing) -> io::Result<()> {
    writeln!(out, "exports available: {}", listing.exports.len())?;
    listing.exports.iter().try_for_each(|export| write_export(out, export, listing.is_extended))
}

fn write_export(out: &mut dyn Write, export: &ListedExport, is_extended: bool) -> io::Result<()> {
    writeln!(out, " export: '{}'", printable(&export.name))?;
    if !export.description.is_empty() {
        writeln!(out, "  description: {}", printable(&export.description))?;
    }
    if let Some((size, flags)) = export.fact {
        let flags = flags.to_wire();
        writeln!(out, "  size:  {size}")?;
        write!(out, "  flags: {flags:#x} (")?;
        for (_, name) in FLAGS.iter().filter(|(bit, _)| flags >> bit & 1 == 1) {
            write!(out, " {name}")?;
        }
        writeln!(out, " )")?;
    }
    if let Some(blocks) = &export.blocks {
        writeln!(out, "  min block: {}", blocks.minimum)?;
        writeln!(out, "  opt block: {}", blocks.preferred)?;
        writeln!(out, "  max block: {}", blocks.maximum)?;
    }
    writeln!(out, "  transaction size: {}-bit", if is_extended { 64 } else { 32 })?;
    if !export.contexts.is_empty() {
        writeln!(out, "  available meta contexts: {}", export.contexts.len())?;
        for context in &export.contexts {
            writeln!(out, "   {}", printable(context))?;
        }
    }
    Ok(())
}
