//! `cowhand serve`: disks over NBD, over vhost-user-blk and as files until told to stop.
//!
//! The order of things: settings, signals, sockets for commands and figures, images that are missing, disks, the trace,
//! sockets for NBD, mounts; then the processes that make connections are started and what is not needed any more is given up, the lines to paste are shown, and systemd is told. At the end
//! (SIGHUP, SIGINT, SIGTERM, SIGQUIT, or `quit`): no new requests, those in flight are answered, disks are closed (metadata written, locks given back), socket and pid file removed.

pub mod announcement;
pub mod args;
pub mod brokers;
pub mod config;
pub mod disks;
pub mod drive_options;
pub mod drives;
pub mod endpoint;
pub mod exports;
pub mod inventory;
mod jobs;
pub mod listening;
pub mod log;
pub mod log_filter;
pub mod machine_lines;
pub mod map_memory;
pub mod metrics;
pub mod paste;
pub mod pid_file;
pub mod qmp;
pub mod sandbox;
pub mod settings;
pub mod signals;
pub mod socket_mode;
pub mod socket_path;
pub mod status_line;
pub mod steering;
pub mod supervise;
pub mod systemd;
pub mod trace;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use control::{Events, QmpError};
use door_nbd::{Server, ServerOptions, TlsPolicy};
use door_vhost_user_blk::limits::QUEUES_MAX;
use export::{Exports, Loops, Shutdown};
use graph::trace::Recorder;
use graph::{Change, OpenRules};
use reactor::{Backend, Reactor};

use self::announcement::{Reach, announce};
use self::args::Args;
use self::disks::OpenedDisk;
use self::exports::shown_serial;
use self::inventory::Inventory;
use self::inventory::export_view::ExportView;
use self::inventory::exports::NewExport;
use self::inventory::fuse::NewFuseDoor;
use self::inventory::vhost_user::NewVhostDoor;
use self::listening::Listening;
use self::pid_file::PidFile;
use self::sandbox::Sandbox;
use self::settings::{FuseFile, Placed, Settings, Surroundings, TlsFiles};
use self::steering::Sockets;
use self::supervise::View;
use self::systemd::Inherited;
use self::trace::Trace;
use crate::background::Background;
use crate::create::options;
use crate::failure::Failure;

/// Serves until a signal ends it.
pub fn run(args: Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if list_options(&args, out)? {
        return Ok(ExitCode::SUCCESS);
    }
    let inherited = systemd::take_sockets()?;
    let settings = Settings::new(args, Surroundings::here(!inherited.is_empty()))?;
    serve(&settings, inherited, None)
}

/// Serves as `settings` say, until a signal ends it. With `background`, the process that was started hears when all is open.
///
/// # Errors
/// When something cannot be opened, or closed at the end.
pub fn serve(
    settings: &Settings,
    inherited: Vec<Inherited>,
    background: Option<Background>,
) -> Result<ExitCode, Failure> {
    log::start(&settings.log)?;
    let signals = signals::watch().map_err(|error| Failure::because("cannot watch for signals", &error))?;
    let _pid_file = settings.pid_file.as_deref().map(PidFile::create).transpose()?;
    let tls = tls_policy(settings.tls.as_ref())?;
    disks::allow_many_files();
    let sockets = Sockets::open(settings.qmp.as_deref(), settings.metrics)?;

    let reactor =
        Reactor::new(Backend::Ring).map_err(|error| Failure::because("cannot make an event loop", &error))?;
    let recorder = settings.trace.as_ref().map(|_| Arc::new(Recorder::default()));
    let rules =
        OpenRules { policy: settings.policy.clone(), trace: recorder.clone(), ..OpenRules::default() };
    if let Some(bytes) = settings.map_memory {
        rules.map_budget.set_bytes_max(bytes);
    }
    confine(settings);
    let disks = disks::open_all(&reactor, settings, &rules)?;
    let server = nbd_server(settings);
    let inventory = Inventory::new(
        rules,
        server,
        Events::new(),
        settings.sandbox,
        settings.plain_tcp_allowed,
        settings.socket_mode,
    );
    let created: Vec<_> = disks.iter().filter(|disk| disk.created).map(|disk| disk.export.clone()).collect();
    fill(&inventory, &reactor.run(inventory.graph.change()), disks)?;
    reactor.run(async { inventory.graph.disks().iter().for_each(|node| node.disk.start_upkeep()) });
    let trace = settings.trace.as_deref().zip(recorder);
    let trace = trace.map(|(path, recorder)| Trace::start(path, recorder, &reactor)).transpose()?;
    // Last of what can fail: from here on clients are served.
    let listening = settings
        .endpoint
        .as_ref()
        .map(|place| Listening::start(place, settings.socket_mode, inherited))
        .transpose();
    match listening {
        Ok(Some(listening)) => inventory.doors.open(listening, tls, usize::MAX),
        Ok(None) => {}
        Err(failure) => {
            trace.map_or(Ok(()), Trace::discard)?;
            return Err(failure);
        }
    }

    open_to_machines(&inventory, settings)?;
    mount_files(&inventory, settings)?;
    if settings.ends_with_mounts {
        end_with_mounts(&reactor, &inventory);
    }
    let reach = Reach::new(&inventory, settings.tls.as_ref());
    if let Some(background) = background {
        background.ready()?;
    }
    if settings.sandbox == Sandbox::On {
        brokers::start()?;
        give_up_rights(&inventory, settings, &sockets);
    }
    if !settings.quiet {
        // Past the caller's writer, which would try again at the end what nobody reads.
        let mut out = BufWriter::new(io::stdout());
        if let Err(error) = announce(&mut out, &inventory, &sockets, &reach, &created) {
            // `| head -1`, or a terminal that is gone: the disks are served all the same.
            tracing::info!(%error, "the lines to paste cannot be shown");
        }
    }
    systemd::ready(&format!("serving {} disks", inventory.graph.disks().len()));
    let view = if settings.quiet { View::Nothing } else { View::Terminal };
    let served = supervise::until_told(&reactor, &inventory, &sockets, signals, view);
    let traced = trace.map_or(Ok(()), Trace::end);
    served.and(traced)?;
    Ok(ExitCode::SUCCESS)
}

/// From here on only servers are connected to that drives and options name.
fn confine(settings: &Settings) {
    if settings.sandbox == Sandbox::On {
        dial::confine(settings.allowed_addresses.iter().cloned());
    }
}

/// What is not needed any more is given up.
fn give_up_rights(inventory: &Inventory, settings: &Settings, sockets: &Sockets) {
    let door = inventory.doors.name();
    let machines = inventory.front_end_sockets();
    let names = [door.as_deref(), settings.pid_file.as_deref(), sockets.control_path()];
    let names = names.into_iter().flatten().chain(machines.iter().map(PathBuf::as_path));
    // Without commands nothing is opened later.
    let reach: &[PathBuf] = if settings.qmp.is_some() { &settings.allowed } else { &[] };
    sandbox::enter(&names.collect::<Vec<_>>(), reach);
}

/// The NBD server, without disks yet, on loops that all doors share.
fn nbd_server(settings: &Settings) -> Arc<Server> {
    let options = ServerOptions {
        connections_per_export: settings.shared,
        merge: settings.request_merging,
        ..ServerOptions::default()
    };
    let exports = Exports::new();
    if let Some(name) = &settings.default_export {
        exports.set_default(name.clone());
    }
    Server::new(exports, options, &Loops::new(settings.threads, Shutdown::new()))
}

/// Whether the user asks for a list of options instead, which is written then.
fn list_options(args: &Args, out: &mut dyn Write) -> Result<bool, Failure> {
    if options::asks_for_help(&args.create_options) {
        let format = args.format.unwrap_or(graph::probe::Format::Qcow2);
        out.write_all(options::help(format).as_bytes())?;
    } else if let Some(format) = args.drive_options {
        drive_options::list(format, out)?;
    } else {
        return Ok(false);
    }
    Ok(true)
}

/// Puts the disks of the command line where commands find them, and exports each.
fn fill(inventory: &Inventory, change: &Change<'_>, disks: Vec<OpenedDisk>) -> Result<(), Failure> {
    const FAILED: &str = "cannot serve all disks";
    for OpenedDisk { export: name, node, .. } in disks {
        let shown = ExportView::everything(&node.disk);
        let description = node.description();
        let node =
            inventory.graph.add_disk(change, node).map_err(|error| Failure::because(FAILED, &error))?;
        let export = NewExport { id: name.clone(), node: node.name(), name, description, shown };
        inventory.add_export(export).map_err(|error| Failure::because(FAILED, &error))?;
    }
    Ok(())
}

/// Opens the sockets of virtual machines. Each is an export of its own, beside the NBD one.
fn open_to_machines(inventory: &Inventory, settings: &Settings) -> Result<(), Failure> {
    for (number, Placed { export: name, path }) in settings.vhost_user_blk.iter().enumerate() {
        let failed =
            |error: QmpError| Failure::because(format!("cannot serve {name} at {}", path.display()), &error);
        let nbd = inventory.export(name).ok_or_else(|| Failure::new(format!("there is no export {name}")))?;
        let shown = ExportView::everything(&nbd.disk.disk);
        let door = NewVhostDoor {
            socket: path.clone(),
            queues: QUEUES_MAX,
            logical_block_size: 512,
            serial: Some(shown_serial(name).to_owned()),
            merge: settings.request_merging,
        };
        let id = format!("{name}-vhost{number}");
        inventory.add_vhost_export((id, nbd.disk.name()), shown, door).map_err(failed)?;
    }
    Ok(())
}

/// Mounts disks as files. Each is an export of its own, beside the NBD one.
fn mount_files(inventory: &Inventory, settings: &Settings) -> Result<(), Failure> {
    for (number, file) in settings.fuse.iter().enumerate() {
        let FuseFile { placed: Placed { export: name, path }, growable, allow_other } = file;
        let nbd = inventory.export(name).ok_or_else(|| Failure::new(format!("there is no export {name}")))?;
        let shown = ExportView::everything(&nbd.disk.disk);
        let door = NewFuseDoor { mountpoint: path.clone(), growable: *growable, allow_other: *allow_other };
        let id = format!("{name}-fuse{number}");
        let failed = |error: QmpError| Failure::because(format!("cannot serve {name} as a file"), &error);
        inventory.add_fuse_export((id, nbd.disk.name()), shown, door).map_err(failed)?;
    }
    Ok(())
}

/// The end comes when somebody has taken the last mount away.
fn end_with_mounts(reactor: &Reactor, inventory: &Rc<Inventory>) {
    let inventory = Rc::clone(inventory);
    reactor.run(async {
        reactor::spawn(async move {
            for export in inventory.exports() {
                if let Some(door) = export.fuse_door() {
                    door.ended().await;
                }
            }
            inventory.loops.shutdown().trigger();
        })
        .detach();
    });
}

fn tls_policy(files: Option<&TlsFiles>) -> Result<TlsPolicy, Failure> {
    let Some(files) = files else { return Ok(TlsPolicy::Off) };
    let files = tls::ServerFiles {
        certificate: files.cert.clone(),
        key: files.key.clone(),
        client_ca: files.client_ca.clone(),
    };
    let config = files.config().map_err(|error| Failure::because("cannot set up TLS", &error))?;
    Ok(TlsPolicy::Required(config))
}
