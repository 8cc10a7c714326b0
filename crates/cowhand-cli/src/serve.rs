//! `cowhand serve`: disks over NBD, over vhost-user-blk and as files until a signal or command ends it.
//!
//! The order of the start: settings, signals, sockets for commands and figures, images that are missing,
//! disks, the trace, sockets for NBD, mounts. Then the processes that make connections are started,
//! privileges that are not needed any more are dropped, the lines to paste are shown, and systemd is
//! notified.
//!
//! The end (SIGHUP, SIGINT, SIGTERM, SIGQUIT, or `quit`): no new requests are admitted, those in flight are
//! answered, disks are closed (metadata written, locks released), socket and pid file removed.

pub mod announcement;
pub mod args;
pub mod config;
pub mod disks;
pub mod drive_options;
pub mod drives;
pub mod guest_memory;
mod help;
mod libvirt_xml;
mod life;
pub mod machine_lines;
pub mod map_memory;
pub mod overlay;
pub mod paste;
pub mod settings;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use door_nbd::TlsPolicy;
use monitor::inventory::Inventory;
use monitor::log_filter::DEFAULT_LEVEL;
use monitor::owners_socket::OwnersSocket;
use monitor::pid_file::PidFile;
use monitor::sandbox::{self, Sandbox};
use monitor::socket_path::let_names_stay;
use monitor::steering::Sockets;
use monitor::systemd::{self, Inherited};
use monitor::take_over::successor::Successor;
use monitor::take_over::{Estate, sockets};
use monitor::{brokers, log, signals};
use net::dial::Allowed;
use reactor::{Backend, Reactor};
use tool::create::options;
use tool::failure::Failure;

use self::announcement::{Reach, announce};
use self::args::Args;
use self::config::Given;
use self::life::Opened;
use self::settings::Settings;
use crate::background::{Background, Side};
use crate::warnings;

/// How often this process may begin again with rings, after successors that failed: each time costs about 100
/// KiB a loop in advance.
const RETURNS_WITH_RINGS: usize = 3;

/// Serves until a signal ends it.
pub fn run(given: Given, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let args = &given.args;
    if list_options(args, out)? {
        return Ok(ExitCode::SUCCESS);
    }
    let background = match args.background.then(Background::begin).transpose()? {
        Some(Side::Started(code)) => return Ok(code),
        Some(Side::Serving(background)) => Some(background),
        None => None,
    };
    let successor = args.take_over.as_deref().map(Successor::ask).transpose()?;
    let inherited = if successor.is_some() { sockets::systemd() } else { systemd::take_sockets()? };
    let settings = warnings::while_reading(|| Settings::new(given.options()?, !inherited.is_empty()))?;
    let beginning = Beginning { inherited, background: background.map(InBackground::Here), successor };
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
    pub successor: Option<Successor>,
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
    let Beginning { inherited, background, successor } = beginning;
    let options = &settings.options;
    log::start(options.log.as_deref().unwrap_or(DEFAULT_LEVEL))?;
    let signals = signals::watch().map_err(|error| Failure::because("cannot watch for signals", &error))?;
    // Files that the predecessor still needs if this process fails are not to be removed.
    let_names_stay(successor.is_some());
    let pid_file = options.pid_file.as_deref().map(PidFile::create).transpose()?;
    let tls = settings.tls.as_ref().map_or(Ok(TlsPolicy::Off), required_tls)?;
    disks::allow_many_files();
    memory::keep_reserve();
    let sockets =
        Sockets::open(options.qmp.as_deref(), options.metrics, options.take_over_socket.as_deref())?
            .with_pid_file(pid_file);
    let reactor =
        Reactor::new(Backend::Ring).map_err(|error| Failure::because("cannot make an event loop", &error))?;
    confine(options);
    let in_place = successor.is_some();
    let opened = match successor {
        Some(successor) => life::take_over(successor, (&reactor, settings, &tls), inherited)?,
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
    // The certificate is read for it.
    let reach = Reach::new(&opened.inventory, settings.tls.as_ref());
    if options.sandbox == Sandbox::On {
        brokers::start()?;
        systemd::connect();
        read_authorities(options);
        reactor::prepare_rings(rings_to_come(&opened.inventory, options));
        give_up_rights(&opened.inventory, options, &sockets);
    }
    if !options.quiet {
        show(&opened, &sockets, &reach);
    }
    let status = format!("serving {} disks", opened.inventory.graph.disks().len());
    if in_place {
        systemd::ready_in_place(&status)
    } else {
        systemd::ready(&status)
    }
    life::live(opened, (&reactor, settings, &tls), &sockets, &signals.on_loop())
}

/// Shows the lines to paste.
fn show(opened: &Opened, sockets: &Sockets, reach: &Reach) {
    // Not through the caller's writer, which would write the same again at the end if the output is closed.
    let mut out = BufWriter::new(io::stdout());
    if let Err(error) = announce(&mut out, &opened.inventory, sockets, reach, &opened.created) {
        // `| head -1`, or a terminal that is gone: the disks are served all the same.
        tracing::info!(%error, "the lines to paste cannot be shown");
    }
}

/// From here on only servers are connected to that drives and options name.
fn confine(options: &Args) {
    if options.sandbox == Sandbox::On {
        // Without commands no disk comes later.
        let directories = if options.qmp.is_some() { options.allow_path.clone() } else { Vec::new() };
        net::dial::confine(Allowed { targets: options.allow_connect.iter().cloned().collect(), directories });
    }
}

/// Reads the authorities that commands may need, while there are files: a disk, a copy or a checkpoint may lead to a server with TLS.
fn read_authorities(options: &Args) {
    let connects = options.qmp.is_some() && !options.allow_connect.is_empty();
    if connects && let Err(error) = net::tls::ClientCredentials::of_machine() {
        tracing::info!("no server is reached by https: {error}");
    }
}

/// Rings that are made before the sandbox forbids it: one for each loop, and one more for each time that this
/// process may have to begin again because a successor failed. After more failures than that the loops use
/// threads.
fn rings_to_come(inventory: &Inventory, options: &Args) -> usize {
    let beginnings = if options.take_over_socket.is_some() { 1 + RETURNS_WITH_RINGS } else { 1 };
    inventory.loops.count() * beginnings
}

/// What is not needed any more is given up.
fn give_up_rights(inventory: &Inventory, options: &Args, sockets: &Sockets) {
    let door = inventory.doors.name();
    let machines = inventory.front_end_sockets();
    let next = sockets.take_over().map(OwnersSocket::path);
    let names = [door.as_deref(), options.pid_file.as_deref(), sockets.control_path(), next];
    let names = names.into_iter().flatten().chain(machines.iter().map(PathBuf::as_path));
    // Without commands nothing is opened later.
    let reach: &[PathBuf] = if options.qmp.is_some() { &options.allow_path } else { &[] };
    let disks = if next.is_some() { files_of_disks(inventory) } else { Vec::new() };
    let lineages = if options.qmp.is_some() { lineages_of_disks(inventory) } else { Vec::new() };
    let (names, credentials) = (names.collect::<Vec<_>>(), remote::s3::files_read());
    let (names, disks, lineages, credentials) = (&names[..], &disks[..], &lineages[..], &credentials[..]);
    sandbox::enter(sandbox::Allowed { names, reach, disks, lineages, credentials });
}

/// Directories of disks that have checkpoints: commands may take more.
fn lineages_of_disks(inventory: &Inventory) -> Vec<PathBuf> {
    let disks = inventory.graph.disks();
    let paths = disks.iter().filter_map(|disk| inventory.graph.path_of_image(&disk.name()).ok().flatten());
    let places = paths.filter_map(|path| lineage::Place::of(path.parent()?).ok());
    let mut directories: Vec<PathBuf> =
        places.filter(lineage::Place::is_lineage).map(|place| place.directory().to_owned()).collect();
    directories.sort_unstable();
    directories.dedup();
    directories
}

/// The files that disks lie in: if a process that is to take over fails they are opened again.
fn files_of_disks(inventory: &Inventory) -> Vec<PathBuf> {
    let disks = inventory.graph.disks();
    let layers = disks.iter().flat_map(|node| block::layers(node.disk.root()));
    layers.map(|layer| PathBuf::from(layer.name())).filter(|name| name.exists()).collect()
}

/// Whether the user asks for a list of options instead, which is written then.
fn list_options(args: &Args, out: &mut dyn Write) -> Result<bool, Failure> {
    if options::asks_for_help(&args.create_options) {
        let format = args.format.unwrap_or(graph::probe::Format::Qcow2);
        out.write_all(options::help(format, false).as_bytes())?;
    } else if let Some(format) = args.drive_options {
        drive_options::list(format, out)?;
    } else {
        return Ok(false);
    }
    Ok(true)
}

fn required_tls(files: &net::tls::ServerFiles) -> Result<TlsPolicy, Failure> {
    let config = files.config().map_err(|error| Failure::because("cannot set up TLS", &error))?;
    Ok(TlsPolicy::Required(config))
}
