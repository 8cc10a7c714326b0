//! The commands of the control socket: from arguments that were checked to calls, and back to QEMU's fields. The table of all is [`commands`].

mod active;
mod amend;
mod backup;
mod bitmap_bits;
mod bitmap_sync;
pub mod bitmaps;
mod block_graph;
pub mod blockdev;
pub mod chain;
mod chardevs;
pub mod checkpoints;
pub mod chosen;
pub mod commands;
pub mod corruption;
mod create;
pub mod dirty_bitmaps;
pub mod errors;
pub mod exports;
pub mod fd_sets;
pub mod figures;
mod forget;
mod full_name;
mod image_info;
mod job_maps;
mod jobs;
pub mod limits;
mod lineage_queries;
mod live;
pub mod nbd_server;
mod new_target;
mod node_options;
pub mod node_schema;
mod object_types;
pub mod objects;
mod overlay;
mod publish;
mod push;
pub mod query;
mod quorum;
pub mod reference;
pub mod remotes;
mod restore;
mod shortening;
pub mod snapshots;
mod transaction;

use std::rc::Rc;

use control::{Answer, Command, CommandSpec, EventSpec, Handler, Outcome, Passed, QmpError};
use export::Shutdown;
use graph::Change;
use serde_json::{Value, json};
use tool::voice::QEMU_VERSION;

use super::inventory::Inventory;

/// Does the commands on an inventory.
pub struct Steering {
    inventory: Rc<Inventory>,
    quit: Shutdown,
}

impl Steering {
    /// Triggers `quit` when a client wants the program to end.
    pub fn new(inventory: Rc<Inventory>, quit: Shutdown) -> Rc<Self> {
        Rc::new(Self { inventory, quit })
    }

    /// Does a command that another process did.
    ///
    /// # Errors
    /// As the command has them.
    pub async fn do_again(&self, command: &Command) -> Result<(), QmpError> {
        self.run(command, &Passed::default()).await?;
        self.inventory.journal.note(command);
        Ok(())
    }

    async fn run(&self, command: &Command, passed: &Passed) -> Result<Answer, QmpError> {
        commands::run(At { steering: self, inventory: &self.inventory, command, passed }).await
    }

    /// Ends the program. Callers of QEMU's daemon get the events of all that ends with it before the answer.
    async fn end(&self) {
        if self.inventory.as_qemu {
            self.inventory.report_end().await;
        }
        self.quit.trigger();
    }
}

/// A command that is carried out, with what it needs.
#[derive(Clone, Copy)]
pub struct At<'a> {
    steering: &'a Steering,
    inventory: &'a Rc<Inventory>,
    command: &'a Command,
    /// Descriptors of its client.
    passed: &'a Passed,
}

impl<'a> At<'a> {
    /// The graph, while nothing else changes it. Bare files that the command names are disks by then.
    async fn change(&self) -> Result<Change<'a>, QmpError> {
        let change = self.change_nodes().await?;
        blockdev::open_bare_files(self.inventory, &change, self.command).await?;
        Ok(change)
    }

    /// Likewise, for a command to which a bare file is a node as any other.
    async fn change_nodes(&self) -> Result<Change<'a>, QmpError> {
        let change = self.inventory.graph.change().await;
        match self.steering.quit.is_triggered() {
            true => Err(QmpError::generic("the program is ending")),
            false => Ok(change),
        }
    }
}

impl Handler for Steering {
    fn commands(&self) -> &'static [CommandSpec] {
        commands::COMMANDS
    }

    fn events(&self) -> &'static [EventSpec] {
        commands::EVENTS
    }

    /// Our own numbers, so that no client takes this program for a QEMU; under QEMU's name those of `--version`.
    fn version(&self) -> Value {
        let number = if self.inventory.as_qemu { QEMU_VERSION } else { env!("CARGO_PKG_VERSION") };
        let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let [major, minor, micro] = std::array::from_fn(|_| parts.next().unwrap_or(0));
        json!({
            "qemu": { "major": major, "minor": minor, "micro": micro },
            "package": concat!("cowhand ", env!("CARGO_PKG_VERSION")),
        })
    }

    fn execute<'a>(&'a self, command: &'a Command, passed: &'a Passed) -> Outcome<'a> {
        Box::pin(async move {
            let outcome = self.run(command, passed).await;
            let mut outcome = outcome.map_err(|error| self.inventory.hinted(error));
            if let (true, Err(error)) = (self.inventory.as_qemu, &mut outcome) {
                // Scripts read answers line by line, and take `\"` apart.
                error.desc = error.desc.replace('"', "'");
            }
            match &outcome {
                Ok(_) => {
                    self.inventory.journal.note(command);
                    tracing::debug!(command = command.name, "control: done");
                }
                Err(error) => tracing::info!(command = command.name, %error, "control: refused"),
            }
            outcome
        })
    }
}
