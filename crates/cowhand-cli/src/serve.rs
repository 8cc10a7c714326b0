//! `cowhand serve`: disks over NBD, over vhost-user-blk and as files until told to stop.
//!
//! The order of things: settings, signals, sockets for commands and figures, images that are missing, disks, the trace,
//! sockets for NBD, mounts; then what is not needed any more is given up, the lines to paste are shown, and systemd is told. At the end
//! (SIGHUP, SIGINT, SIGTERM, SIGQUIT, or `quit`): no new requests, those in flight are answered, disks are closed (metadata written, locks given back), socket and pid file removed.

pub mod announcement;
pub mod args;
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
pub mod take_over;
pub mod trace;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{Events, QmpError};
use door_nbd::{Server, ServerOptions, TlsPolicy};
use door_vhost_user_blk::limits::QUEUES_MAX;
use export::{Exports, Loops, Shutdown};
use graph::drivers::elsewhere;
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
use self::signals::SignalStreams;
use self::socket_path::let_names_stay;
use self::steering::Sockets;
use self::supervise::{Ended, View};
use self::systemd::Inherited;
use self::take_over::elder::TakeOverSocket;
use self::take_over::heir::Heir;
use self::take_over::{Estate, RETURNING_MAX, clients, sockets};
use self::trace::Trace;
use crate::background::{Background, Side};
use crate::create::options;
use crate::failure::Failure;

/// Serves until a signal ends it.
pub fn run(args: Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if list_options(&args, out)? {
        return Ok(ExitCode::SUCCESS);
    }
    let background = match args.background.then(Background::begin).transpose()? {
        Some(Side::Started(code)) => return Ok(code),
        Some(Side::Serving(background)) => Some(background),
        None => None,
    };
    let heir = args.take_over.as_deref().map(Heir::ask).transpose()?;
    let inherited = if heir.is_some() { sockets::systemd() } else { systemd::take_sockets()? };
    let settings = Settings::new(args, Surroundings::here(!inherited.is_empty()))?;
    let beginning = Beginning { inherited, background: background.map(InBackground::Here), heir };
    serve(&settings, beginning)
}

/// How a process came to serve.
#[derive(Debug, Default)]
pub struct Beginning {
    /// Sockets that systemd made.
    pub inherited: Vec<Inherited>,
    /// The process that was started hears when all is open.
    pub background: Option<InBackground>,
    /// Another daemon serves the same until now.
    pub heir: Option<Heir>,
}

/// What a process in the background leaves.
#[derive(Debug)]
pub enum InBackground {
    /// Its terminal.
    Here(Background),
    /// Also its directory and standard error.
    Away(Background),
}

impl InBackground {
    fn ready(self) -> Result<(), Failure> {
        match self {
            Self::Here(background) => background.ready_here(),
            Self::Away(background) => background.ready(),
        }
    }
}

/// Serves as `settings` say, until a signal ends it, or another process takes over.
///
/// # Errors
/// When something cannot be opened, or closed at the end.
pub fn serve(settings: &Settings, beginning: Beginning) -> Result<ExitCode, Failure> {
    let Beginning { inherited, background, heir } = beginning;
    log::start(&settings.log)?;
    let signals = signals::watch().map_err(|error| Failure::because("cannot watch for signals", &error))?;
    // What a daemon goes on with if this process fails is not to be removed.
    let_names_stay(heir.is_some());
    let pid_file = settings.pid_file.as_deref().map(PidFile::create).transpose()?;
    let tls = tls_policy(settings.tls.as_ref())?;
    disks::allow_many_files();
    let sockets =
        Sockets::open(settings.qmp.as_deref(), settings.metrics, settings.take_over_socket.as_deref())?
            .with_pid_file(pid_file);
    let reactor =
        Reactor::new(Backend::Ring).map_err(|error| Failure::because("cannot make an event loop", &error))?;
    let in_place = heir.is_some();
    let opened = match heir {
        Some(heir) => take_over(heir, (&reactor, settings, &tls), inherited)?,
        None => Opened::new(&reactor, settings, &tls, inherited, &Estate::default())?,
    };
    if in_place {
        let_names_stay(false);
        sockets::close_unwanted();
        if let Some(Err(error)) = sockets.pid_file().map(PidFile::write) {
            tracing::warn!(%error, "the pid file cannot be written");
        }
    }
    if let Some(background) = background {
        background.ready()?;
    }
    if settings.sandbox == Sandbox::On {
        check_connections(&opened.inventory)?;
        give_up_rights(&opened.inventory, settings, &sockets);
    }
    if !settings.quiet {
        show(&opened, &sockets, settings);
    }
    let status = format!("serving {} disks", opened.inventory.graph.disks().len());
    if in_place {
        systemd::ready_in_place(&status)
    } else {
        systemd::ready(&status)
    }
    live(opened, (&reactor, settings, &tls), &sockets, &signals.on_loop())
}

/// Serves until the end. If a process that was to take over fails, everything is opened again.
fn live(
    mut opened: Opened,
    (reactor, settings, tls): (&Reactor, &Settings, &TlsPolicy),
    sockets: &Sockets,
    signals: &SignalStreams,
) -> Result<ExitCode, Failure> {
    let view = if settings.quiet { View::Nothing } else { View::Terminal };
    loop {
        let Opened { inventory, trace, .. } = opened;
        let served = supervise::until_told(reactor, &inventory, sockets, signals, view);
        let traced = trace.map_or(Ok(()), Trace::end);
        drop(inventory);
        let estate = match served {
            Ok(Ended::Over) => return traced.map(|()| ExitCode::SUCCESS),
            Err(failure) => return Err(failure),
            Ok(Ended::GivenAway(exchange, estate)) => match reactor.run(exchange.give(&estate)) {
                // Nothing is to be closed or removed in order: all of it is another process's.
                Ok(()) => std::process::exit(0),
                Err(failure) => {
                    tracing::error!(%failure, "nobody takes over; this process goes on");
                    estate
                }
            },
            Ok(Ended::Kept(exchange, estate, failure)) => {
                tracing::error!(%failure, "nobody takes over; this process goes on");
                reactor.run(exchange.refuse(failure.to_string()));
                estate
            }
        };
        opened = take_back(&estate, (reactor, settings, tls))?;
    }
}

/// Opens everything again that was to be given away. A process that ends may hold locks for a moment longer.
fn take_back(
    estate: &Estate,
    (reactor, settings, tls): (&Reactor, &Settings, &TlsPolicy),
) -> Result<Opened, Failure> {
    let until = Instant::now() + RETURNING_MAX;
    loop {
        let again = || estate.sockets.iter().map(sockets::Handed::again).collect::<io::Result<Vec<_>>>();
        sockets::offer(
            again().map_err(|error| Failure::because("cannot listen at the same sockets", &error))?,
        );
        match Opened::new(reactor, settings, tls, sockets::systemd(), estate) {
            Ok(opened) => {
                let_names_stay(false);
                sockets::close_unwanted();
                return Ok(opened);
            }
            Err(failure) if Instant::now() >= until => return Err(failure),
            Err(failure) => tracing::warn!(%failure, "cannot go on yet; trying again"),
        }
        std::thread::sleep(RETURNING_PAUSE);
    }
}

/// Takes everything over from a running daemon, which goes on if this fails.
fn take_over(
    mut heir: Heir,
    (reactor, settings, tls): (&Reactor, &Settings, &TlsPolicy),
    inherited: Vec<Inherited>,
) -> Result<Opened, Failure> {
    let opened = heir.check(reactor, settings).and_then(|()| {
        let estate = heir.inherit(reactor)?;
        Opened::new(reactor, settings, tls, inherited, &estate)
    });
    let opened = match opened {
        Ok(opened) => opened,
        Err(failure) => {
            heir.give_up(reactor, &failure);
            return Err(failure);
        }
    };
    if let Err(failure) = heir.serve(reactor) {
        opened.close(reactor);
        return Err(failure);
    }
    Ok(opened)
}

/// Everything that clients use, open.
struct Opened {
    inventory: Rc<Inventory>,
    trace: Option<Trace>,
    /// Exports whose images were made just now.
    created: Vec<String>,
}

impl Opened {
    /// Opens the disks, then the sockets that clients come in at, then goes on with what another process left in `estate`. Nobody is served before
    /// the loops run.
    fn new(
        reactor: &Reactor,
        settings: &Settings,
        tls: &TlsPolicy,
        inherited: Vec<Inherited>,
        estate: &Estate,
    ) -> Result<Self, Failure> {
        let recorder = settings.trace.as_ref().map(|_| Arc::new(Recorder::default()));
        let rules =
            OpenRules { policy: settings.policy.clone(), trace: recorder.clone(), ..OpenRules::default() };
        if let Some(bytes) = settings.map_memory {
            rules.map_budget.set_bytes_max(bytes);
        }
        let disks = disks::open_all(reactor, settings, &rules)?;
        let inventory = Inventory::new(
            rules,
            nbd_server(settings),
            Events::new(),
            settings.sandbox,
            settings.plain_tcp_allowed,
            settings.socket_mode,
        );
        let created = disks.iter().filter(|disk| disk.created).map(|disk| disk.export.clone()).collect();
        fill(&inventory, &reactor.run(inventory.graph.change()), disks)?;
        reactor.run(async { inventory.graph.disks().iter().for_each(|node| node.disk.start_upkeep()) });
        let trace = settings.trace.as_deref().zip(recorder);
        let trace = trace.map(|(path, recorder)| Trace::start(path, recorder, reactor)).transpose()?;
        let mut opened = Self { inventory, trace, created };
        match opened.open_doors(reactor, (settings, tls), inherited, estate) {
            Ok(()) => Ok(opened),
            Err(failure) => {
                opened.trace.take().map_or(Ok(()), Trace::discard)?;
                opened.close(reactor);
                Err(failure)
            }
        }
    }

    /// Last of what can fail: from here on clients are served.
    fn open_doors(
        &self,
        reactor: &Reactor,
        (settings, tls): (&Settings, &TlsPolicy),
        inherited: Vec<Inherited>,
        estate: &Estate,
    ) -> Result<(), Failure> {
        let inventory = &self.inventory;
        if let Some(place) = &settings.endpoint {
            let listening = Listening::start(place, settings.socket_mode, inherited)?;
            inventory.doors.open(listening, tls.clone(), usize::MAX);
        }
        open_to_machines(inventory, settings)?;
        mount_files(inventory, settings)?;
        if settings.ends_with_mounts {
            end_with_mounts(reactor, inventory);
        }
        reactor.run(clients::resume(inventory, estate))
    }

    /// Closes the disks, whose clients nobody has served here.
    fn close(self, reactor: &Reactor) {
        // Failures are told by it.
        let _ = reactor.run(self.inventory.close_all());
    }
}

/// Shows the lines to paste.
fn show(opened: &Opened, sockets: &Sockets, settings: &Settings) {
    let reach = Reach::new(&opened.inventory, settings.tls.as_ref());
    // Past the caller's writer, which would try again at the end what nobody reads.
    let mut out = BufWriter::new(io::stdout());
    if let Err(error) = announce(&mut out, &opened.inventory, sockets, &reach, &opened.created) {
        // `| head -1`, or a terminal that is gone: the disks are served all the same.
        tracing::info!(%error, "the lines to paste cannot be shown");
    }
}

/// What is not needed any more is given up.
fn give_up_rights(inventory: &Inventory, settings: &Settings, sockets: &Sockets) {
    let door = inventory.doors.name();
    let machines = inventory.front_end_sockets();
    let next = sockets.take_over().map(TakeOverSocket::path);
    let names = [door.as_deref(), settings.pid_file.as_deref(), sockets.control_path(), next];
    let names = names.into_iter().flatten().chain(machines.iter().map(PathBuf::as_path));
    // Without commands nothing is opened later.
    let reach: &[PathBuf] = if settings.qmp.is_some() { &settings.allowed } else { &[] };
    let disks = if next.is_some() { files_of_disks(inventory) } else { Vec::new() };
    sandbox::enter(&names.collect::<Vec<_>>(), reach, &disks);
}

/// The files that disks lie in: if a process that is to take over fails they are opened again.
fn files_of_disks(inventory: &Inventory) -> Vec<PathBuf> {
    let disks = inventory.graph.disks();
    let layers = disks.iter().flat_map(|node| block::layers(node.disk.root()));
    layers.map(|layer| PathBuf::from(layer.name())).filter(|name| name.exists()).collect()
}

/// Pause before everything is tried to be opened again.
const RETURNING_PAUSE: Duration = Duration::from_millis(50);

/// Drivers whose servers end a connection that was idle for a minute, or after so many requests.
const CONNECTING_ANEW: [&str; 3] = ["http", "https", "s3"];

/// Refuses a disk that would fail before long: in the sandbox no connection is made.
fn check_connections(inventory: &Inventory) -> Result<(), Failure> {
    for node in inventory.graph.disks() {
        let connects =
            |name: &str| elsewhere(Path::new(name)).is_some_and(|driver| CONNECTING_ANEW.contains(&driver));
        let layer = block::layers(node.disk.root()).find(|layer| connects(layer.name()));
        if let Some(layer) = layer {
            let what =
                format!("{} lies on {}, to which connections are made anew", node.name(), layer.name());
            return Err(Failure::new(what).with_hint("the sandbox forbids that; give --sandbox off"));
        }
    }
    Ok(())
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
