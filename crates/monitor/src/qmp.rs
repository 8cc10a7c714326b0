//! The commands of the control socket: from arguments that were checked to calls, and back to QEMU's fields.

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
pub mod corruption;
mod create;
pub mod dirty_bitmaps;
mod elsewhere_schema;
pub mod errors;
pub mod export_schema;
pub mod exports;
pub mod fd_sets;
pub mod figures;
mod forget;
mod full_name;
mod image_info;
mod job_maps;
mod job_schema;
mod jobs;
pub mod kinds;
pub mod limits;
mod lineage_queries;
mod live;
pub mod nbd_server;
mod new_target;
mod node_options;
pub mod node_schema;
pub mod object_schema;
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
pub mod schema;
mod shortening;
pub mod snapshots;
mod transaction;

use std::rc::Rc;

use control::{Answer, Arguments, Command, CommandSpec, EventSpec, Handler, Outcome, Passed, QmpError};
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
    pub async fn do_again(&self, command: &Command) -> Result<Value, QmpError> {
        let done = self.run(command, &Passed::default()).await?;
        self.inventory.journal.note(command);
        Ok(done)
    }

    /// Ends the program. Callers of QEMU's daemon get the events of all that ends with it before the answer.
    async fn end(&self) -> Result<Value, QmpError> {
        if self.inventory.as_qemu {
            self.inventory.report_end().await;
        }
        self.quit.trigger();
        Ok(json!({}))
    }

    /// The graph, while nothing else changes it.
    async fn change(&self) -> Result<Change<'_>, QmpError> {
        let change = self.inventory.graph.change().await;
        match self.quit.is_triggered() {
            true => Err(QmpError::generic("the program is ending")),
            false => Ok(change),
        }
    }

    /// Asks the store first: other commands do not wait for it.
    async fn restore(&self, arguments: Arguments<'_>) -> Result<Value, QmpError> {
        let source = restore::source(arguments).await?;
        restore::restore(&self.inventory, &self.change().await?, &source, arguments).await
    }

    /// Likewise.
    async fn push(&self, arguments: Arguments<'_>) -> Result<Value, QmpError> {
        let target = push::target(&self.inventory, arguments).await?;
        push::push(&self.inventory, &self.change().await?, target, arguments).await
    }

    async fn run(&self, command: &Command, passed: &Passed) -> Result<Value, QmpError> {
        let (inventory, arguments) = (&self.inventory, Arguments(&command.arguments));
        if let Some(done) = about_jobs(inventory, &command.name, arguments).await {
            return done;
        }
        if let Some(done) = about_objects(inventory, &command.name, arguments) {
            return done;
        }
        if let Some(done) = about_descriptors(inventory, &command.name, arguments, passed) {
            return done;
        }
        if let Some(done) = about_lineages(inventory, &command.name, arguments).await {
            return done;
        }
        match command.name.as_str() {
            "query-version" => return Ok(self.version()),
            "query-status" => return Ok(status()),
            "x-debug-query-block-graph" => return Ok(block_graph::query(inventory).await),
            "x-query-remotes" => return Ok(remotes::query()),
            "x-debug-block-dirty-bitmap-sha256" => return dirty_bitmaps::sha256(inventory, arguments).await,
            "x-block-dirty-bitmap-ranges" => return bitmap_bits::ranges(inventory, arguments).await,
            "cowhand-restore" => return self.restore(arguments).await,
            "cowhand-push" => return self.push(arguments).await,
            "quit" => return self.end().await,
            _ => {}
        }
        let change = self.change().await?;
        blockdev::open_bare_files(inventory, &change, command).await?;
        if let Some(done) = about_history(inventory, &change, &command.name, arguments).await {
            return done;
        }
        match command.name.as_str() {
            "blockdev-add" => blockdev::add(inventory, &change, &command.arguments).await,
            "blockdev-del" => blockdev::del(inventory, &change, arguments).await,
            "blockdev-reopen" => blockdev::reopen(inventory, &change, arguments).await,
            "x-blockdev-change" => quorum::change(inventory, &change, arguments).await,
            "x-blockdev-set" => blockdev::change(inventory, &change, arguments).await,
            "block_resize" => blockdev::resize(inventory, &change, arguments).await,
            "blockdev-create" => create::create(inventory, arguments),
            "x-blockdev-amend" => amend::amend(inventory, arguments),
            "blockdev-snapshot-internal-sync" => snapshots::create(inventory, arguments).await,
            "blockdev-snapshot-delete-internal-sync" => snapshots::delete(inventory, arguments).await,
            "blockdev-snapshot" => {
                overlay::snapshot(inventory, &change, arguments).await?.keep().await;
                Ok(json!({}))
            }
            "blockdev-snapshot-sync" => {
                overlay::snapshot_sync(inventory, &change, arguments).await?.keep().await;
                Ok(json!({}))
            }
            "change-backing-file" => overlay::change_backing_file(inventory, &change, arguments).await,
            "block-stream" => shortening::stream(inventory, &change, "stream", arguments).await,
            "block-commit" => shortening::commit(inventory, &change, arguments).await,
            "blockdev-mirror" => live::mirror(inventory, &change, arguments).await,
            "drive-mirror" => live::drive_mirror(inventory, &change, arguments).await,
            "blockdev-backup" => backup::blockdev_backup(inventory, &change, arguments, None).await,
            "drive-backup" => backup::drive_backup(inventory, &change, arguments, None).await,
            "transaction" => transaction::run(inventory, change, arguments).await,
            "blockdev-set-active" => active::set(inventory, &change, arguments).await,
            "block-export-add" => exports::add(inventory, &change, arguments).await,
            "block-export-del" => exports::del(inventory, change, arguments).await,
            "nbd-server-add" => exports::add_older(inventory, &change, arguments).await,
            "nbd-server-remove" => exports::del_older(inventory, arguments),
            "nbd-server-start" => nbd_server::start(inventory, arguments),
            "nbd-server-stop" => nbd_server::stop(inventory, change).await,
            "object-add" => objects::add(inventory, &command.arguments),
            "object-del" => objects::del(inventory, arguments),
            "qom-set" => objects::set(inventory, arguments),
            "block_set_io_throttle" => limits::set(inventory, &command.arguments),
            "block-set-write-threshold" => figures::set_threshold(inventory, arguments),
            "block-latency-histogram-set" => figures::set_histogram(inventory, arguments),
            name => Err(QmpError::not_found(format!("there is no command {name}"))),
        }
    }
}

/// What there is, in lists that may be long. Nothing changes by it.
async fn list(
    inventory: &Inventory,
    name: &str,
    arguments: Arguments<'_>,
) -> Option<Result<Answer, QmpError>> {
    Some(match name {
        "query-block" => query::devices(inventory, arguments).await,
        "query-named-block-nodes" => query::nodes(inventory, arguments).await,
        "query-blockstats" => figures::all(inventory, arguments).await,
        "query-block-exports" => exports::query(inventory, arguments),
        "x-query-throttle" => limits::query(inventory, arguments).await,
        _ => return None,
    })
}

/// There is no machine that could be stopped.
fn status() -> Value {
    json!({ "status": "running", "singlestep": false, "running": true })
}

/// Checkpoints, and bitmaps of what changed.
async fn about_history(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    name: &str,
    arguments: Arguments<'_>,
) -> Option<Result<Value, QmpError>> {
    match name {
        "cowhand-checkpoint" | "cowhand-fork" | "cowhand-rollback" => {
            Some(checkpoints::run(inventory, change, name, arguments).await)
        }
        "x-block-dirty-bitmap-mark" => Some(bitmap_bits::mark(inventory, arguments).await),
        _ => dirty_bitmaps::change(inventory, change, name, arguments).await,
    }
}

/// What a lineage has, and what of it goes: no disk is switched by the command.
async fn about_lineages(
    inventory: &Rc<Inventory>,
    name: &str,
    arguments: Arguments<'_>,
) -> Option<Result<Value, QmpError>> {
    Some(match name {
        "cowhand-log" => lineage_queries::log(inventory, arguments).await,
        "cowhand-diff" => lineage_queries::diff(inventory, arguments).await,
        "cowhand-gc" => lineage_queries::gc(inventory, arguments).await,
        "cowhand-checkpoint-delete" => lineage_queries::delete(inventory, arguments).await,
        "cowhand-forget" => forget::forget(inventory, arguments).await,
        "cowhand-publish" => publish::publish(inventory, arguments).await,
        _ => return None,
    })
}

/// What objects there are, and what they hold.
fn about_objects(
    inventory: &Inventory,
    name: &str,
    arguments: Arguments<'_>,
) -> Option<Result<Value, QmpError>> {
    Some(match name {
        "qom-get" => objects::get(inventory, arguments),
        "qom-list" => objects::list(inventory, arguments),
        "qom-list-types" => Ok(object_types::types(arguments)),
        "qom-list-properties" => object_types::properties(arguments),
        "qom-list-get" => object_types::values(inventory, arguments),
        "x-blockdev-set-iothread" => objects::set_iothread(inventory, arguments),
        "chardev-add" => chardevs::add(inventory, arguments),
        "chardev-change" => chardevs::change(inventory, arguments),
        "chardev-remove" => chardevs::remove(inventory, arguments),
        "chardev-send-break" => chardevs::send_break(inventory, arguments),
        "query-chardev" => Ok(chardevs::query(inventory)),
        "query-chardev-backends" => Ok(chardevs::backends()),
        _ => return None,
    })
}

/// Files and connections that the client opened.
fn about_descriptors(
    inventory: &Inventory,
    name: &str,
    arguments: Arguments<'_>,
    passed: &Passed,
) -> Option<Result<Value, QmpError>> {
    Some(match name {
        "add-fd" => fd_sets::add(inventory, arguments, passed),
        "remove-fd" => fd_sets::remove(inventory, arguments),
        "query-fdsets" => Ok(fd_sets::query(inventory)),
        "getfd" => fd_sets::get(arguments, passed),
        "closefd" => fd_sets::close(arguments),
        _ => return None,
    })
}

/// Commands about jobs; they do not wait for the command at work, which may begin one.
async fn about_jobs(
    inventory: &Rc<Inventory>,
    name: &str,
    arguments: Arguments<'_>,
) -> Option<Result<Value, QmpError>> {
    let act = || jobs::act(inventory, name, arguments);
    Some(match name {
        "query-jobs" => Ok(jobs::query(inventory)),
        "query-block-jobs" => Ok(jobs::query_block(inventory)),
        "job-pause" | "block-job-pause" => act().await,
        "job-resume" | "block-job-resume" => act().await,
        "job-cancel" | "block-job-cancel" => act().await,
        "job-complete" | "block-job-complete" => act().await,
        "job-finalize" | "block-job-finalize" => act().await,
        "job-dismiss" | "block-job-dismiss" => act().await,
        "block-job-set-speed" | "block-job-change" => act().await,
        _ => return None,
    })
}

impl Handler for Steering {
    fn commands(&self) -> &'static [CommandSpec] {
        schema::COMMANDS
    }

    fn events(&self) -> &'static [EventSpec] {
        schema::EVENTS
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
            let listed = list(&self.inventory, &command.name, Arguments(&command.arguments)).await;
            let outcome = match listed {
                Some(listed) => listed,
                None => self.run(command, passed).await.map(Answer::from),
            };
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
