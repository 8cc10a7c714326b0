//! `cowhand serve`: disks over NBD until told to stop.
//!
//! The order of things: settings, signals, sockets for commands and figures, images that are missing, disks, sockets for NBD; then
//! what is not needed any more is given up, the lines to paste are shown, and systemd is told. At the end: no new requests, those in flight are answered, disks are closed (metadata
//! written, locks given back), socket and pid file removed.

pub mod args;
pub mod config;
pub mod disks;
pub mod endpoint;
pub mod exports;
pub mod inventory;
pub mod listening;
pub mod log;
pub mod map_memory;
pub mod metrics;
pub mod paste;
pub mod pid_file;
pub mod qmp;
pub mod sandbox;
pub mod settings;
pub mod signals;
pub mod socket_path;
pub mod status_line;
pub mod steering;
pub mod supervise;
pub mod systemd;
pub mod trace;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use control::{Events, QmpError};
use door_nbd::{Exports, Server, ServerOptions, Shutdown, TlsPolicy};
use image::OpenRules;
use image::size::human_size;
use image::trace::Recorder;
use qcow2::cache_sizes::CacheSizes;
use reactor::Reactor;

use self::args::Args;
use self::inventory::Inventory;
use self::inventory::disk_node::DiskNode;
use self::inventory::export_view::ExportView;
use self::inventory::exports::NewExport;
use self::listening::Listening;
use self::pid_file::PidFile;
use self::sandbox::Sandbox;
use self::settings::{Settings, Surroundings, TlsFiles};
use self::steering::Sockets;
use self::trace::Trace;
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
    let sockets = Sockets::open(&settings)?;

    let backend = reactor::available();
    let reactor =
        Reactor::new(backend).map_err(|error| Failure::because("cannot make an event loop", &error))?;
    let recorder = settings.trace.as_ref().map(|_| Arc::new(Recorder::default()));
    let rules =
        OpenRules { policy: settings.policy.clone(), trace: recorder.clone(), ..OpenRules::default() };
    if let Some(bytes) = settings.map_memory {
        rules.map_budget.set_bytes_max(bytes);
    }
    let disks = disks::open_all(&reactor, &settings, &rules)?;
    let first = disks.first().map_or("disk", |(name, _)| name.as_str());
    let listening =
        settings.endpoint.as_ref().map(|place| Listening::start(place, first, inherited)).transpose()?;
    let shutdown = Shutdown::new();
    let options = ServerOptions { connections_per_export: settings.shared, ..ServerOptions::default() };
    let server = Server::new(Exports::new(), options, shutdown.clone(), settings.threads);
    let inventory =
        Inventory::new(rules, server, Events::new(), settings.sandbox, settings.plain_tcp_allowed);
    if let Some(listening) = listening {
        inventory.doors.open(listening, tls, usize::MAX);
    }
    reactor.run(fill(&inventory, disks))?;
    // Where starting fails before this no file is left that would be in the way of the next start.
    let trace = settings.trace.as_deref().zip(recorder);
    let trace = trace.map(|(path, recorder)| Trace::start(path, recorder, &reactor)).transpose()?;

    if settings.sandbox == Sandbox::On {
        let door = inventory.doors.name();
        let names = [door.as_deref(), settings.pid_file.as_deref(), sockets.control_path()];
        // Without commands nothing is opened later.
        let reach: &[PathBuf] = if settings.qmp.is_some() { &settings.allowed } else { &[] };
        sandbox::enter(&names.into_iter().flatten().collect::<Vec<_>>(), reach);
    }
    announce(out, &inventory, &sockets)?;
    systemd::ready(&format!("serving {} disks", inventory.disks().len()));
    let served = supervise::until_told(&reactor, &inventory, &shutdown, &sockets, signals);
    let traced = trace.map_or(Ok(()), Trace::end);
    served.and(traced)?;
    Ok(ExitCode::SUCCESS)
}

/// Puts the disks of the command line where commands find them, and exports each.
async fn fill(inventory: &Inventory, disks: Vec<(String, DiskNode)>) -> Result<(), Failure> {
    let failed = |error: QmpError| Failure::because("cannot serve all disks", &error);
    for (name, disk) in disks {
        let shown = ExportView::everything(&disk.disk);
        let description = disk.description();
        let node_name = disk.options().and_then(|options| options.layer.node_name);
        let node = inventory.add_disk(node_name.unwrap_or_else(|| name.clone()), disk).map_err(failed)?;
        let export = NewExport { id: name.clone(), node, name, description, shown };
        inventory.add_export(export).map_err(failed)?;
    }
    Ok(())
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

/// Says what is served, and how to reach it.
fn announce(out: &mut dyn Write, inventory: &Inventory, sockets: &Sockets) -> Result<(), Failure> {
    let (addresses, tls) = (inventory.doors.addresses(), inventory.doors.has_tls());
    for export in inventory.exports() {
        let Ok(node) = export.disk_node.disk() else { continue };
        let created = if node.created { ", created" } else { "" };
        let read_only = if node.disk.read_only() { ", read-only" } else { "" };
        let (size, path) = (human_size(node.disk.size()), node.path.display());
        writeln!(out, "{}: {size}, {path}{created}{read_only}", export.id)?;
        if let Some(status) = node.disk.status() {
            writeln!(out, "  caches    {}", caches(&status.cache_sizes))?;
        }
        for address in &addresses {
            for (tool, line) in paste::lines(address, &export.id, tls) {
                writeln!(out, "  {tool:<9} {line}")?;
            }
        }
    }
    if let Some(path) = sockets.control_path() {
        writeln!(out, "control: cowhand status {}", paste::quote(&path.to_string_lossy()))?;
    }
    if let Some(metrics) = sockets.metrics() {
        writeln!(out, "metrics: http://{}/metrics", metrics.address)?;
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
