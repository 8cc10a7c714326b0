//! What the servers among QEMU's programs share: nodes, exports and sockets are made by the commands of the control socket, in the
//! order of the command line.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::thread::available_parallelism;

use control::{Command, Events, Handler, Passed};
use door_nbd::{Server, ServerOptions};
use door_vhost_user_blk::FilePolicy;
use export::{Exports, Loops, Shutdown};
use graph::{Graph, OpenRules};
use reactor::{Backend, Reactor};
use serde_json::{Map, Value};

use super::keyval::typed;

use monitor::brokers;
use monitor::endpoint::absolute;
use monitor::inventory::Inventory;
use monitor::inventory::nodes::Nodes;
use monitor::pid_file::PidFile;
use monitor::qmp::{Steering, commands};
use monitor::sandbox::{self, Allowed, Sandbox};
use monitor::signals::{self, Signals};
use monitor::socket_mode::SocketMode;
use monitor::steering::Sockets;
use monitor::supervise::{View, until_asked};
use monitor::{log, systemd};
use tool::failure::Failure;

use crate::background::Background;
use crate::serve::disks;

/// A server before it serves.
pub struct Daemon {
    /// Its own loop.
    pub reactor: Reactor,
    /// What it has open.
    pub inventory: Rc<Inventory>,
    steering: Rc<Steering>,
    signals: Signals,
    pid_file: Option<(PathBuf, PidFile)>,
}

impl Daemon {
    /// An empty one. `log` is what it tells on standard error, `options` how it treats its clients.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn begin(log: &str, options: ServerOptions, rules: OpenRules) -> Result<Self, Failure> {
        log::start(log)?;
        let signals =
            signals::watch().map_err(|error| Failure::because("cannot watch for signals", &error))?;
        disks::allow_many_files();
        memory::keep_reserve();
        let reactor = Reactor::new(Backend::Ring)
            .map_err(|error| Failure::because("cannot make an event loop", &error))?;
        let loops = Loops::new(available_parallelism().map_or(1, usize::from), Shutdown::new());
        let server = Server::new(Exports::as_qemu(), options, &loops);
        // Plain TCP is what these programs open; the sandbox is entered when all is open. A guest whose memory never answers would stop
        // all others here, too.
        let (mode, memory) = (SocketMode::default(), FilePolicy::default());
        let graph = Graph::new(OpenRules { names_all: true, ..rules });
        let nodes = Nodes { graph, events: Events::new(), sandbox: Sandbox::Off, as_qemu: true };
        let inventory = Inventory::new(nodes, server, memory, true, mode);
        let steering = Steering::new(Rc::clone(&inventory), Shutdown::new());
        Ok(Self { reactor, inventory, steering, signals, pid_file: None })
    }

    /// Does a command of the control socket. Texts among the arguments may stand for numbers and switches.
    ///
    /// # Errors
    /// As the command; `option` said it.
    pub fn command(&self, option: &str, name: &str, arguments: Map<String, Value>) -> Result<(), Failure> {
        let spec = commands::COMMANDS.iter().find(|spec| spec.name == name);
        let spec = spec.ok_or_else(|| Failure::new(format!("there is no command {name}")))?;
        let failed = |error| Failure::because(option, &error);
        let Value::Object(arguments) = typed(&spec.arguments, Value::Object(arguments)) else {
            return Ok(());
        };
        spec.check(&arguments).map_err(failed)?;
        let command = Command { name: name.to_owned(), arguments, id: None };
        self.reactor.run(self.steering.execute(&command, &Passed::default())).map(drop).map_err(failed)
    }

    /// Writes the process's number.
    ///
    /// # Errors
    /// When the file belongs to a living process, or cannot be written.
    pub fn write_pid_file(&mut self, path: &Path) -> Result<(), Failure> {
        let path = absolute(path)?;
        self.pid_file = Some((path.clone(), PidFile::create(&path)?));
        Ok(())
    }

    /// Serves until a signal or `quit`. Where no commands come, privileges that are not needed any more are
    /// dropped first.
    ///
    /// # Errors
    /// When a loop fails or a disk cannot be closed.
    pub fn serve(self, background: Option<Background>) -> Result<ExitCode, Failure> {
        let sockets = Sockets::open(None, None, None)?;
        let monitors = Rc::clone(&self.inventory.monitors);
        if let Some(background) = background {
            background.ready()?;
        }
        if monitors.is_empty() {
            let door = self.inventory.doors.name();
            let sockets = self.inventory.front_end_sockets();
            let names = [door.as_deref(), self.pid_file.as_ref().map(|(path, _)| path.as_path())];
            let names = names.into_iter().flatten().chain(sockets.iter().map(PathBuf::as_path));
            brokers::start()?;
            systemd::connect();
            reactor::prepare_rings(self.inventory.loops.count());
            let (names, credentials) = (names.collect::<Vec<_>>(), remote::s3::files_read());
            sandbox::enter(Allowed { names: &names, credentials: &credentials, ..Allowed::default() });
        }
        systemd::ready(&format!("serving {} disks", self.inventory.graph.disks().len()));
        until_asked(&self.reactor, self.inventory, &sockets, &self.signals.on_loop(), View::Nothing)?;
        // Tasks of the loop have disks: a caller that sees the sockets gone finds the files free.
        drop(self.reactor);
        // The last answers are on their way.
        monitors.finish()?;
        Ok(ExitCode::SUCCESS)
    }
}
