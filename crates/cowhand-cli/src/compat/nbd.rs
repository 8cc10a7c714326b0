//! `qemu-nbd`: one disk over NBD, until its last client leaves.

mod args;
mod kernel;
mod list;
mod netlink;

use std::io::Write;
use std::net::ToSocketAddrs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use clap::{ArgMatches, FromArgMatches};
use door_nbd::TlsPolicy;
use futures_util::future::select;
use graph::drive::OptionTree;
use graph::options::{Backing, DiskOptions};
use graph::probe::Format;
use graph::{Disk, DiskNode, OpenRules};
use monitor::endpoint::{Endpoint, absolute};
use monitor::inventory::export_view::{LentBitmap, Shown};
use monitor::inventory::exports::NewExport;
use monitor::listening::Listening;
use monitor::log_filter::LEVEL_AS_QEMU;
use monitor::qmp::nbd_server::credentials;
use monitor::systemd;
use parking_lot::Mutex;
use qcow2::Qcow2;
use tool::failure::{Failure, warn};
use tool::output::printable;

use self::args::Args;
pub use self::args::command;
use self::kernel::Device;
use super::daemon::Daemon;
use super::keyval;
use crate::background::{Background, Side, Waiting};
use crate::io::opening::{Manner, Overlay};
use crate::policy::policy;

/// The node's name and the export's id; clients do not see them.
const NODE: &str = "drive";

/// Serves.
///
/// # Errors
/// For an option that is refused, and as the server.
pub fn run(matches: &ArgMatches, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let args = Args::from_arg_matches(matches)
        .map_err(|error| Failure::because("the command line is not understood", &error))?;
    args.check()?;
    if args.list {
        return list::run(&args, out);
    }
    if args.disconnect {
        let path = args.device()?;
        Device::at(path)?.disconnect()?;
        writeln!(out, "{} disconnected", printable(&path.to_string_lossy()))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before the second process begins: errors reach the terminal.
    let device = args.connect.as_deref().map(Device::at).transpose()?;
    let background = match args.is_in_background().then(Background::begin).transpose()? {
        Some(Side::Started(code)) => return Ok(code),
        Some(Side::Serving(background)) => Some(background),
        None => None,
    };
    let rules = OpenRules { policy: policy(&[], &[])?, ..OpenRules::default() };
    let log = if args.verbose { "info" } else { LEVEL_AS_QEMU };
    let inherited = systemd::take_sockets()?;
    let mut daemon = Daemon::begin(log, args.server_options(), rules)?;
    for object in &args.objects {
        let option = format!("--object {object}");
        daemon.command(&option, "object-add", keyval::parse("--object", object, "qom-type")?)?;
    }
    // It holds the locks of the files while one of its snapshots is served.
    let _snapshot_of = export(&daemon, &args)?;
    let tls = match &args.tls_creds {
        None => TlsPolicy::Off,
        Some(id) => {
            credentials(&daemon.inventory, id).map_err(|error| Failure::because("--tls-creds", &error))?
        }
    };
    let endpoint = match (&device, &args.socket) {
        (Some(device), None) => Endpoint::Socket(device.socket()),
        _ => endpoint(&args, !inherited.is_empty(), matches!(tls, TlsPolicy::Off))?,
    };
    let listening = Listening::start(&endpoint, daemon.inventory.socket_mode, inherited)?;
    let mut admission = daemon.inventory.doors.admission(tls);
    admission.authorization =
        args.tls_authz.as_deref().map(|id| daemon.inventory.objects.authorizations.by(id));
    daemon.inventory.doors.open(listening, admission);
    if let Some(path) = &args.pid_file {
        daemon.write_pid_file(path)?;
    }
    let (Some(device), Endpoint::Socket(socket)) = (device, &endpoint) else {
        when_clients_leave(&daemon, args.persistent, None);
        return daemon.serve(background);
    };
    let waiting = background.map(Background::leave).transpose()?;
    let connecting = connect(&daemon, device, socket, &args, waiting)?;
    when_clients_leave(&daemon, args.persistent, Some(Arc::clone(&connecting)));
    let ended = daemon.serve(None);
    // The server may end before its loop comes to that.
    disconnect(&connecting);
    let failure = connecting.lock().failure.take();
    failure.map_or(ended, Err)
}

/// What came of connecting a device of the kernel.
#[derive(Debug, Default)]
struct Connecting {
    /// The kernel has the connection.
    device: Option<Device>,
    /// It has not, and the server ends.
    failure: Option<Failure>,
}

/// Makes the kernel a client of ours, on a thread: it is served by the loops, which run when the sandbox is entered. All that the thread needs is open.
fn connect(
    daemon: &Daemon,
    mut device: Device,
    socket: &Path,
    args: &Args,
    waiting: Option<Waiting>,
) -> Result<Arc<Mutex<Connecting>>, Failure> {
    let failed = |error| Failure::because(format!("cannot connect to {}", socket.display()), &error);
    let stream = UnixStream::connect(socket).map_err(failed)?;
    let (export, shutdown) = (args.export_name.clone(), daemon.inventory.loops.shutdown().clone());
    let file = args.file().map_or_else(String::new, |file| printable(&file.to_string_lossy()).into_owned());
    let reported = args.verbose.then(|| format!("NBD device {} is now connected to {file}\n", device.name()));
    let connecting = Arc::new(Mutex::new(Connecting::default()));
    let outcome = Arc::clone(&connecting);
    let connect = move || match device.connect(stream, &export) {
        Ok(()) => {
            outcome.lock().device = Some(device);
            // The main thread has the lock of standard output. The reader may be gone.
            let _ = rustix::io::write(rustix::stdio::stdout(), reported.unwrap_or_default().as_bytes());
            if let Some(waiting) = waiting {
                waiting.ready();
            }
        }
        Err(failure) => {
            outcome.lock().failure = Some(failure);
            shutdown.trigger();
        }
    };
    let spawned = thread::Builder::new().name("device".to_owned()).spawn(connect);
    spawned.map_err(|error| Failure::because("cannot start a thread", &error))?;
    Ok(connecting)
}

/// Opens the disk and lets clients reach it. Returns the disk of which a snapshot is served.
fn export(daemon: &Daemon, args: &Args) -> Result<Option<Disk>, Failure> {
    let inventory = &daemon.inventory;
    daemon.reactor.run(async {
        // It goes as soon as it is open: its space is given back when the server ends, however it does.
        let overlay = overlay(args, inventory.graph.rules()).await?;
        let tree = overlay.as_ref().map_or_else(|| args.tree(), |overlay| Ok(overlay.tree.clone()))?;
        let options = args.disk_options(tree.clone())?;
        let failed = |error: &dyn std::error::Error| {
            Failure::because(format!("cannot serve {}", options.filename.display()), error)
        };
        let disk = graph::open(&options, inventory.graph.rules()).await.map_err(|error| failed(&error))?;
        let (disk, snapshot_of) = match &args.load_snapshot {
            None => (disk, None),
            Some(name) => {
                let snapshot = graph::at_snapshot(&disk, name, &options, inventory.graph.rules()).await;
                (snapshot.map_err(|error| failed(&error))?, Some(disk))
            }
        };
        let (known, change) = (disk.bitmap_names(), inventory.graph.change().await);
        let mut lent: Vec<LentBitmap> = Vec::new();
        for name in args.bitmaps.iter().filter(|bitmap| !known.contains(bitmap)) {
            let of = below_with(&disk, name, inventory.graph.rules()).await?.ok_or_else(|| {
                Failure::new(format!("{} has no bitmap {name:?}", options.filename.display()))
            })?;
            let of = DiskNode::new(format!("below{}", lent.len()), of.0, OptionTree::default(), of.1);
            let of = inventory.graph.add_disk(&change, of).map_err(|error| failed(&error))?;
            let of = Arc::clone(of.disk().map_err(|error| failed(&error))?);
            lent.push(LentBitmap { name: name.clone(), of });
        }
        let shown = Shown {
            writable: !disk.read_only(),
            bitmaps: args.bitmaps.clone(),
            since: Vec::new(),
            allocation_depth: args.allocation_depth,
            writethrough: args.cache.is_some_and(|mode| mode.writethrough),
            allows_inactive: false,
        };
        let node = DiskNode::new(NODE.to_owned(), options.filename.clone(), tree, disk);
        node.disk.start_upkeep();
        let node = inventory.graph.add_disk(&change, node).map_err(|error| failed(&error))?;
        let export = NewExport {
            id: NODE.to_owned(),
            node: node.name(),
            name: args.export_name.clone(),
            description: args.description.clone().unwrap_or_default(),
            shown,
            lent,
        };
        inventory.add_export(export).map_err(|error| failed(&error))?;
        Ok(snapshot_of)
    })
}

/// The uppermost image below the disk's own that has the bitmap `name`, opened by itself, with its path: `qemu-nbd -B` looks down the chain.
async fn below_with(disk: &Disk, name: &str, rules: &OpenRules) -> Result<Option<(PathBuf, Disk)>, Failure> {
    for layer in block::layers(disk.root()).skip(1) {
        let Some(image) = layer.downcast_ref::<Qcow2>() else { continue };
        if image.size() != disk.size() || !image.bitmaps().iter().any(|bitmap| bitmap.name() == name) {
            continue;
        }
        let path = PathBuf::from(layer.name());
        let mut options = DiskOptions::of_path(&path);
        (options.layer.format, options.layer.read_only) = (Some(Format::Qcow2), true);
        options.layer.backing = Backing::None;
        let opened = graph::open(&options, rules).await;
        let failed = |error| Failure::because(format!("cannot open {}", path.display()), &error);
        return opened.map(|disk| Some((path.clone(), disk))).map_err(failed);
    }
    Ok(None)
}

/// With `-s`, what is written to: an overlay over the disk.
async fn overlay(args: &Args, rules: &OpenRules) -> Result<Option<Overlay>, Failure> {
    if !args.snapshot {
        return Ok(None);
    }
    let text = |text: &str| Some(text.to_owned());
    let manner = Manner {
        format: args.format.map(|format| format.name().to_owned()),
        cache: text("unsafe"),
        discard: text("unmap"),
        ..Manner::default()
    };
    Overlay::over(&manner, args.tree()?, rules).await.map(Some)
}

/// A path, or TCP as qemu-nbd has it: on all addresses, unless `--bind` names one.
fn endpoint(args: &Args, is_inherited: bool, is_plain: bool) -> Result<Endpoint, Failure> {
    if let Some(path) = &args.socket {
        return Ok(Endpoint::Socket(absolute(path)?));
    }
    if is_inherited {
        return Ok(Endpoint::Inherited);
    }
    let wrong = || Failure::new(format!("{}:{} is no address to listen at", args.bind, args.port));
    let mut found = (args.bind.as_str(), args.port).to_socket_addrs().map_err(|_| wrong())?;
    let address = found.next().ok_or_else(wrong)?;
    if is_plain && !address.ip().is_loopback() {
        warn(&format!(
            "every host that reaches {address} can read the disk, and change it unless -r is given; -k or -b 127.0.0.1 keep others out"
        ));
    }
    Ok(Endpoint::Tcp(address))
}

/// Unless it is persistent, the server ends when its last client has left. If it ends in another way, the
/// kernel's device that uses the export is disconnected. A device that left by itself is not touched: it may
/// serve something else by now.
fn when_clients_leave(daemon: &Daemon, is_persistent: bool, connecting: Option<Arc<Mutex<Connecting>>>) {
    let inventory = Rc::clone(&daemon.inventory);
    daemon.reactor.run(async {
        reactor::spawn(async move {
            let Some(record) = inventory.export(NODE) else { return };
            let shutdown = inventory.loops.shutdown();
            select(pin!(record.entry.abandoned()), pin!(shutdown.wait())).await;
            if !shutdown.is_triggered() {
                // They left; nothing else ends the server.
                if let Some(connecting) = connecting {
                    connecting.lock().device = None;
                }
                if !is_persistent {
                    shutdown.trigger();
                }
                return;
            }
            if let Some(connecting) = connecting {
                disconnect(&connecting);
            }
        })
        .detach();
    });
}

/// Takes the connection away from the kernel, if that was not done yet.
fn disconnect(connecting: &Mutex<Connecting>) {
    let device = connecting.lock().device.take();
    if let Some(Err(failure)) = device.map(|mut device| device.disconnect()) {
        tracing::warn!("{failure}");
    }
}
