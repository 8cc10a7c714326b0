//! `cowhand serve`: disks over NBD until told to stop.
//!
//! The order of things: settings, signals, images that are missing, disks, sockets; then what is not needed any more is
//! given up, the lines to paste are shown, and systemd is told. At the end: no new requests, those in flight are answered, disks are closed (metadata
//! written, locks given back), socket and pid file removed.

pub mod args;
pub mod config;
pub mod disks;
pub mod endpoint;
pub mod exports;
pub mod listening;
pub mod log;
pub mod paste;
pub mod pid_file;
pub mod sandbox;
pub mod settings;
pub mod signals;
pub mod socket_path;
pub mod status_line;
pub mod supervise;
pub mod systemd;

use std::io::Write;
use std::process::ExitCode;

use door_nbd::{Exports, Server, ServerOptions, Shutdown, TlsPolicy};
use image::size::human_size;
use qcow2::cache_sizes::CacheSizes;
use reactor::Reactor;

use self::args::Args;
use self::disks::Served;
use self::listening::Listening;
use self::pid_file::PidFile;
use self::sandbox::Sandbox;
use self::settings::{Settings, Surroundings, TlsFiles};
use crate::create::options;
use crate::failure::Failure;

/// Serves until a signal ends it.
pub fn run(args: Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if options::asks_for_help(&args.create_options) {
        let format = args.format.unwrap_or(image::probe::Format::Qcow2);
        out.write_all(options::help(format).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let inherited = systemd::take_sockets()?;
    let settings = Settings::new(args, Surroundings::here(!inherited.is_empty()))?;
    log::start(&settings.log)?;
    let signals =
        signals::termination().map_err(|error| Failure::because("cannot watch for signals", &error))?;
    let _pid_file = settings.pid_file.as_deref().map(PidFile::create).transpose()?;
    let tls = tls_policy(settings.tls.as_ref())?;
    disks::allow_many_files();

    let backend = reactor::available();
    let reactor =
        Reactor::new(backend).map_err(|error| Failure::because("cannot make an event loop", &error))?;
    let served = disks::open_all(&reactor, &settings)?;
    let first = served.first().map_or("disk", |disk| disk.name.as_str());
    let listening = Listening::start(&settings.endpoint, first, inherited)?;
    let shutdown = Shutdown::new();
    let options = ServerOptions { connections_per_export: settings.shared, tls, ..ServerOptions::default() };
    let server = Server::new(exports(&served)?, options, shutdown.clone(), settings.threads);

    if settings.sandbox == Sandbox::On {
        let names = [listening.name(), settings.pid_file.as_deref()];
        sandbox::enter(&names.into_iter().flatten().collect::<Vec<_>>());
    }
    announce(out, &served, &listening, settings.tls.is_some())?;
    systemd::ready(&format!("serving {} disks", served.len()));
    supervise::until_told(&reactor, &server, &shutdown, &listening.listeners, &served, signals)?;
    Ok(ExitCode::SUCCESS)
}

fn tls_policy(files: Option<&TlsFiles>) -> Result<TlsPolicy, Failure> {
    let Some(files) = files else { return Ok(TlsPolicy::Off) };
    let files = door_nbd::TlsFiles {
        certificate: files.cert.clone(),
        key: files.key.clone(),
        client_ca: files.client_ca.clone(),
    };
    let config =
        door_nbd::server_config(&files).map_err(|error| Failure::because("cannot set up TLS", &error))?;
    Ok(TlsPolicy::Required(config))
}

fn exports(served: &[Served]) -> Result<Exports, Failure> {
    let exports = Exports::new();
    for disk in served {
        let added = exports.add(disk.name.clone(), disk.description(), disk.disk.clone());
        added.map_err(|error| Failure::because("cannot serve all disks", &error))?;
    }
    Ok(exports)
}

/// Says what is served, and how to reach it.
fn announce(out: &mut dyn Write, served: &[Served], listening: &Listening, tls: bool) -> Result<(), Failure> {
    for disk in served {
        let created = if disk.created { ", created" } else { "" };
        let read_only = if disk.disk.read_only() { ", read-only" } else { "" };
        let (size, path) = (human_size(disk.disk.size()), disk.path.display());
        writeln!(out, "{}: {size}, {path}{created}{read_only}", disk.name)?;
        if let Some(status) = disk.disk.status() {
            writeln!(out, "  caches    {}", caches(&status.cache_sizes))?;
        }
        for address in &listening.addresses {
            for (tool, line) in paste::lines(address, &disk.name, tls) {
                writeln!(out, "  {tool:<9} {line}")?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

/// The cache sizes in use, whatever was asked for.
fn caches(sizes: &CacheSizes) -> String {
    let (l2, slice) = (human_size(sizes.l2_bytes), human_size(sizes.l2_entry_bytes));
    let covers = if sizes.covers_disk { "covers the disk" } else { "less than the disk has" };
    format!("l2 {l2} in slices of {slice} ({covers}), refcounts {}", human_size(sizes.refcount_bytes))
}
