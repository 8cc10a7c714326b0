//! What the commands for people share: a running server, reached by its control socket.

pub mod figures;
pub mod jobs;

use std::path::{Path, PathBuf};

use control::{Client, ClientError};
use export::few_names;
use serde_json::{Value, json};
use tool::failure::Failure;

/// How a running server is named.
#[derive(Clone, Debug, clap::Args)]
pub struct RemoteArgs {
    /// The server's control socket (cowhand serve --qmp)
    #[arg(value_name = "SOCKET")]
    pub socket: PathBuf,
}

/// A running server.
#[derive(Debug)]
pub struct Remote {
    client: Client,
    socket: PathBuf,
}

impl RemoteArgs {
    /// Connects.
    ///
    /// # Errors
    /// When no server listens there, or it is no control socket.
    pub fn connect(&self) -> Result<Remote, Failure> {
        Remote::connect(&self.socket)
    }
}

impl Remote {
    /// Connects to the control socket at this path.
    ///
    /// # Errors
    /// When no server listens there, or it is no control socket.
    pub fn connect(socket: &Path) -> Result<Self, Failure> {
        let failed = |error: ClientError| {
            Failure::because(format!("cannot talk to the server at {}", socket.display()), &error)
                .with_hint("the socket is what cowhand serve got with --qmp PATH")
        };
        Ok(Self { client: Client::connect(socket).map_err(failed)?, socket: socket.to_owned() })
    }

    /// Runs a command on the server.
    ///
    /// # Errors
    /// When the server refuses, or is gone.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Result<Value, Failure> {
        self.client.execute(command, arguments).map_err(|error| match error {
            ClientError::Refused { desc, .. } => Failure::new(desc),
            error => Failure::because(
                format!("the server at {} does not answer {command}", self.socket.display()),
                &error,
            ),
        })
    }

    /// Removes a node and closes its disk.
    ///
    /// # Errors
    /// As [`Remote::ask`]; when what was not flushed could not be written, though the node is gone.
    pub fn remove_node(&mut self, node: &str) -> Result<(), Failure> {
        let removed = self.ask("blockdev-del", json!({ "node-name": node }))?;
        match removed["x-close-error"].as_str() {
            None => Ok(()),
            Some(error) => Err(Failure::new(error.to_owned())),
        }
    }

    /// The disk of a command: the named one, or the server's only disk.
    ///
    /// # Errors
    /// When there are several and none is named.
    pub fn disk(&mut self, named: Option<&str>) -> Result<String, Failure> {
        if let Some(name) = named {
            return Ok(name.to_owned());
        }
        let figures = figures::read(self)?;
        match &figures[..] {
            [only] => Ok(only.name.clone()),
            [] => Err(Failure::new("the server has no disks that clients reach")),
            several => {
                let names = few_names(several.iter().map(|disk| disk.name.as_str()));
                Err(Failure::new(format!("the server has {} disks; name one of {names}", several.len()))
                    .with_hint("name it with --disk NAME; cowhand status lists all of them"))
            }
        }
    }

    /// The disk of a job: the named one, or the only exported disk, since another disk may be the target of a
    /// job, or the only disk.
    ///
    /// # Errors
    /// When there are several and none is named.
    pub fn disk_of_job(&mut self, named: Option<&str>) -> Result<String, Failure> {
        if let Some(name) = named {
            return Ok(name.to_owned());
        }
        match self.only_exported()? {
            Some(only) => Ok(only),
            None => self.disk(None),
        }
    }

    /// The only disk that is exported, if there is exactly one.
    fn only_exported(&mut self) -> Result<Option<String>, Failure> {
        let exports = self.ask("query-block-exports", json!({}))?;
        let nodes =
            exports.as_array().into_iter().flatten().filter_map(|export| export["node-name"].as_str());
        let mut nodes: Vec<&str> = nodes.collect();
        nodes.dedup();
        Ok(match nodes[..] {
            [only] => Some(only.to_owned()),
            _ => None,
        })
    }
}
