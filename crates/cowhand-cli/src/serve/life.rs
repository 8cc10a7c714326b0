//! What clients use, from its opening to its end; opened again where a process that was to take over fails.

use std::io;
use std::num::NonZero;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{Events, QmpError};
use door_nbd::{Server, ServerOptions, TlsPolicy};
use door_vhost_user_blk::limits::QUEUES_MAX;
use export::{Exports, Loops, Shutdown};
use graph::trace::Recorder;
use graph::{Change, Graph, OpenRules};
use monitor::endpoint::Endpoint;
use monitor::exports::shown_serial;
use monitor::inventory::Inventory;
use monitor::inventory::export_view::{ExportView, Shown};
use monitor::inventory::exports::NewExport;
use monitor::inventory::fuse::NewFuseDoor;
use monitor::inventory::nodes::Nodes;
use monitor::inventory::vhost_user::NewVhostDoor;
use monitor::listening::Listening;
use monitor::sealed_layers;
use monitor::signals::SignalStreams;
use monitor::socket_path::let_names_stay;
use monitor::steering::Sockets;
use monitor::supervise::{self, Ended, View};
use monitor::systemd::Inherited;
use monitor::take_over::successor::Successor;
use monitor::take_over::{Estate, RETURNING_MAX, clients, sockets};
use monitor::trace::Trace;
use reactor::Reactor;
use tool::failure::Failure;

use super::disks::{self, OpenedDisk};
use super::settings::{FuseFile, Placed, SHARED_DEFAULT, Settings, UblkDevice};

/// Pause before everything is tried to be opened again.
const RETURNING_PAUSE: Duration = Duration::from_millis(50);

/// Serves until the end. If a process that was to take over fails, everything is opened again.
pub(super) fn live(
    mut opened: Opened,
    (reactor, settings, tls): (&Reactor, &Settings, &TlsPolicy),
    sockets: &Sockets,
    signals: &SignalStreams,
) -> Result<ExitCode, Failure> {
    let view = if settings.options.quiet { View::Nothing } else { View::Terminal };
    loop {
        let Opened { inventory, trace, .. } = opened;
        let served = supervise::until_asked(reactor, inventory, sockets, signals, view);
        let traced = trace.map_or(Ok(()), Trace::end);
        let estate = match served {
            Ok(Ended::Over) => return traced.map(|()| ExitCode::SUCCESS),
            Err(failure) => return Err(failure),
            Ok(Ended::GivenAway(exchange, estate)) => match reactor.run(exchange.give(&estate)) {
                // Nothing is to be closed or removed in order: all of it is another process's.
                Ok(()) => std::process::exit(0),
                Err(failure) => {
                    tracing::error!(%failure, "no process takes over; this process keeps serving");
                    estate
                }
            },
            Ok(Ended::Kept(exchange, estate, failure)) => {
                tracing::error!(%failure, "no process takes over; this process keeps serving");
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
            Err(failure) => tracing::warn!(%failure, "cannot resume serving yet; trying again"),
        }
        std::thread::sleep(RETURNING_PAUSE);
    }
}

/// Takes everything over from a running daemon, which continues to serve if this fails.
pub(super) fn take_over(
    mut successor: Successor,
    (reactor, settings, tls): (&Reactor, &Settings, &TlsPolicy),
    inherited: Vec<Inherited>,
) -> Result<Opened, Failure> {
    let disks: Vec<_> = settings.exports.iter().map(|export| &export.disk).collect();
    let opened = successor.check(reactor, &disks).and_then(|()| {
        let estate = successor.inherit(reactor)?;
        Opened::new(reactor, settings, tls, inherited, &estate)
    });
    let opened = match opened {
        Ok(opened) => opened,
        Err(failure) => {
            successor.give_up(reactor, &failure);
            return Err(failure);
        }
    };
    if let Err(failure) = successor.serve(reactor) {
        opened.close(reactor);
        return Err(failure);
    }
    Ok(opened)
}

/// Everything that clients use, open.
pub(super) struct Opened {
    pub(super) inventory: Rc<Inventory>,
    trace: Option<Trace>,
    /// Exports whose images were made just now.
    pub(super) created: Vec<String>,
}

impl Opened {
    /// Opens the disks, then the sockets for clients, then resumes the clients in `estate`, which another
    /// process handed over. No client is served before the loops run.
    pub(super) fn new(
        reactor: &Reactor,
        settings: &Settings,
        tls: &TlsPolicy,
        inherited: Vec<Inherited>,
        estate: &Estate,
    ) -> Result<Self, Failure> {
        let recorder = settings.options.trace.as_ref().map(|_| Arc::new(Recorder::default()));
        let rules =
            OpenRules { policy: settings.policy.clone(), trace: recorder.clone(), ..OpenRules::default() };
        if let Some(bytes) = settings.options.map_memory {
            rules.map_budget.set_bytes_max(bytes);
        }
        let disks = disks::open_all(reactor, settings, &rules)?;
        let options = &settings.options;
        let (graph, events) = (Graph::new(rules), Events::new());
        let inventory = Inventory::new(
            Nodes { graph, events, sandbox: options.sandbox, as_qemu: false },
            nbd_server(settings),
            options.guest_memory.into(),
            options.allow_plain_tcp,
            options.socket_mode,
        );
        let created = disks.iter().filter(|disk| disk.created).map(|disk| disk.export.clone()).collect();
        fill(&inventory, &reactor.run(inventory.graph.change()), disks)?;
        reactor.run(async { inventory.graph.disks().iter().for_each(|node| node.disk.start_upkeep()) });
        let trace = settings.options.trace.as_deref().zip(recorder);
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
        sealed_layers::check(&inventory.graph)?;
        if let Some(place) = &settings.endpoint {
            let listening = Listening::start(place, settings.options.socket_mode, inherited)?;
            inventory.doors.open(listening, inventory.doors.admission(tls.clone()));
        }
        open_to_machines(inventory, settings)?;
        mount_files(inventory, settings)?;
        make_devices(inventory, settings)?;
        if settings.ends_with_mounts {
            end_with_mounts(reactor, inventory);
        }
        reactor.run(clients::resume(inventory, estate))
    }

    /// Closes the disks. No client has been served here.
    fn close(self, reactor: &Reactor) {
        self.inventory.abandon_devices();
        // It logs failures.
        let _ = reactor.run(self.inventory.close_all());
    }
}

/// The NBD server, without disks yet, on loops that all doors share.
fn nbd_server(settings: &Settings) -> Arc<Server> {
    let options = ServerOptions {
        connections_per_export: settings.options.shared.unwrap_or(SHARED_DEFAULT).max(1),
        merge: settings.options.request_merging != Some(false),
        ..ServerOptions::default()
    };
    let exports = Exports::new();
    if let Some(name) = &settings.options.default_export {
        exports.set_default(name.clone());
    }
    let processors = || std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = settings.options.threads.map_or_else(processors, |threads| threads.max(1) as usize);
    Server::new(exports, options, &Loops::new(threads, Shutdown::new()))
}

/// Puts the disks of the command line where commands find them, and exports each.
fn fill(inventory: &Inventory, change: &Change<'_>, disks: Vec<OpenedDisk>) -> Result<(), Failure> {
    const FAILED: &str = "cannot serve all disks";
    for OpenedDisk { export: name, node, .. } in disks {
        let shown = ExportView::everything(&node.disk);
        let description = node.description();
        let node =
            inventory.graph.add_disk(change, node).map_err(|error| Failure::because(FAILED, &error))?;
        let export =
            NewExport { id: name.clone(), node: node.name(), name, description, shown, lent: Vec::new() };
        inventory.add_export(export).map_err(|error| Failure::because(FAILED, &error))?;
    }
    Ok(())
}

/// The id and the node of an export beside the NBD one called `name`, and what it shows.
fn beside(
    inventory: &Inventory,
    name: &str,
    door: &str,
    number: usize,
) -> Result<((String, String), Shown), Failure> {
    let nbd = inventory.export(name).ok_or_else(|| Failure::new(format!("there is no export {name}")))?;
    Ok(((format!("{name}-{door}{number}"), nbd.disk.name()), ExportView::everything(&nbd.disk.disk)))
}

/// Opens the sockets of virtual machines. Each is an export of its own, beside the NBD one.
fn open_to_machines(inventory: &Inventory, settings: &Settings) -> Result<(), Failure> {
    for (number, Placed { export: name, path }) in settings.vhost_user_blk.iter().enumerate() {
        let failed =
            |error: QmpError| Failure::because(format!("cannot serve {name} at {}", path.display()), &error);
        let (of, shown) = beside(inventory, name, "vhost", number)?;
        let door = NewVhostDoor {
            socket: Endpoint::Socket(path.clone()),
            queues: QUEUES_MAX,
            logical_block_size: 512,
            serial: Some(shown_serial(name).to_owned()),
            merge: settings.options.request_merging != Some(false),
        };
        inventory.add_vhost_export(of, shown, door).map_err(failed)?;
    }
    Ok(())
}

/// Mounts disks as files. Each is an export of its own, beside the NBD one.
fn mount_files(inventory: &Inventory, settings: &Settings) -> Result<(), Failure> {
    for (number, file) in settings.fuse.iter().enumerate() {
        let FuseFile { placed: Placed { export: name, path }, growable, allow_other } = file;
        let (of, shown) = beside(inventory, name, "fuse", number)?;
        let door = NewFuseDoor { mountpoint: path.clone(), growable: *growable, allow_other: *allow_other };
        let failed = |error: QmpError| Failure::because(format!("cannot serve {name} as a file"), &error);
        inventory.add_fuse_export(of, shown, door).map_err(failed)?;
    }
    Ok(())
}

/// Makes disks block devices. Each is an export of its own, beside the NBD one.
fn make_devices(inventory: &Inventory, settings: &Settings) -> Result<(), Failure> {
    for (index, UblkDevice { export: name, number }) in settings.ublk.iter().enumerate() {
        let (of, shown) = beside(inventory, name, "ublk", index)?;
        let failed =
            |error: QmpError| Failure::because(format!("cannot serve {name} as a block device"), &error);
        inventory.add_ublk_export(of, shown, *number).map_err(failed)?;
    }
    Ok(())
}

/// Ends the program when the last mount has been taken away.
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
