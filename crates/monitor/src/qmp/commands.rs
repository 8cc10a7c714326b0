//! Every command and every event: what each takes, in one table with what does it.

use control::{
    Answer, CommandSpec, EventSpec, Handler, Nothing, Outcome, QmpError, Takes, choice, events, taken,
};
use qcow2::bitmap::BitmapChange;
use serde_json::json;

use super::At;
use super::checkpoints::Step;
use super::jobs::Whose::{Newer, Older};
use super::{
    active, amend, backup, bitmap_bits, bitmaps, block_graph, blockdev, chardevs, checkpoints, chosen,
    corruption, create, dirty_bitmaps, exports, fd_sets, figures, forget, jobs, limits, lineage_queries,
    live, nbd_server, object_types, objects, overlay, publish, push, query, quorum, remotes, restore,
    shortening, snapshots, transaction,
};

choice! {
    /// Who ended the program.
    pub enum Reason { HostQmpQuit, HostSignal }

    /// What follows a failed request of a client: it gets the error.
    pub enum Failed { Report }
}

events! {
    /// The program ends.
    pub SHUTDOWN = "SHUTDOWN" { "guest": bool, "reason": Reason }

    /// An export is gone.
    pub EXPORT_DELETED = "BLOCK_EXPORT_DELETED" { "id": String }

    /// Requests of a client failed.
    pub IO_ERROR = "BLOCK_IO_ERROR" {
        "qom-path": String, "device": String, "node-name": String, "operation": jobs::Operation,
        "action": Failed, "reason": String,
    }
}

/// Every event, with its members.
pub static EVENTS: &[EventSpec] = &[
    figures::WRITE_THRESHOLD,
    SHUTDOWN,
    bitmaps::INVALIDATED,
    corruption::CORRUPTED,
    jobs::STATUS_CHANGE,
    jobs::READY,
    jobs::CANCELLED,
    jobs::COMPLETED,
    jobs::ERROR,
    jobs::PENDING,
    quorum::REPORT_BAD,
    quorum::FAILURE,
    remotes::LOST,
    remotes::BACK,
    EXPORT_DELETED,
    IO_ERROR,
];

/// How a command is done.
type Does = for<'a> fn(At<'a>) -> Outcome<'a>;

/// What does one command with its arguments:
/// - `tells`: a function of the inventory, which cannot fail;
/// - `now`: one that does not wait; `asks`: one that may;
/// - `receives`: one that takes descriptors;
/// - `alone`: one before which nothing else changes the graph, and the same that may wait, `in turn`;
/// - `changes`: one that is given the change of the graph; `changes nodes`: for which bare files stay nodes;
/// - or an expression.
macro_rules! does {
    ($takes:path => |$at:ident, $given:pat_param| $done:expr) => {
        |$at| Box::pin(async move {
            let $given = &taken::<$takes>(&$at.command.arguments)?;
            let done: Result<_, QmpError> = $done;
            done.map(Answer::from)
        })
    };
    ($takes:path => tells $f:path) => { does!($takes => |at, _| Ok($f(at.inventory))) };
    ($takes:path => now $f:path) => { does!($takes => |at, given| $f(at.inventory, given)) };
    ($takes:path => asks $f:path) => { does!($takes => |at, given| $f(at.inventory, given).await) };
    ($takes:path => receives $f:path) => { does!($takes => |at, given| $f(at.inventory, given, at.passed)) };
    ($takes:path => alone $f:path) => {
        does!($takes => |at, given| { let _change = at.change().await?; $f(at.inventory, given) })
    };
    ($takes:path => in turn |$at:ident, $given:ident| $done:expr) => {
        does!($takes => |$at, $given| { let _change = $at.change().await?; $done.await })
    };
    ($takes:path => in turn $f:path) => { does!($takes => in turn |at, given| $f(at.inventory, given)) };
    ($takes:path => changes nodes $f:path) => {
        does!($takes => |at, given| $f(at.inventory, &at.change_nodes().await?, given).await)
    };
    ($takes:path => changes $f:path) => {
        does!($takes => |at, given| $f(at.inventory, &at.change().await?, given).await)
    };
}

macro_rules! commands {
    ($($name:literal $takes:path { $($how:tt)+ })*) => {
        /// Every command, with what it takes.
        pub static COMMANDS: &[CommandSpec] =
            &[$(CommandSpec { name: $name, arguments: <$takes as Takes>::KIND }),*];

        /// What does each of them.
        static DONE: &[Does] = &[$(does!($takes => $($how)+)),*];
    };
}

/// Does a command whose arguments were checked.
///
/// # Errors
/// When there is none of that name, or it fails.
pub async fn run(at: At<'_>) -> Result<Answer, QmpError> {
    let name = &at.command.name;
    match COMMANDS.iter().zip(DONE).find(|(spec, _)| spec.name == name) {
        Some((_, does)) => does(at).await,
        None => Err(QmpError::not_found(format!("there is no command {name}"))),
    }
}

commands! {
    "query-version" Nothing { |at, _| Ok(at.steering.version()) }
    // There is no machine that could be stopped.
    "query-status" Nothing { |_at, _| Ok(json!({ "status": "running", "singlestep": false, "running": true })) }
    "query-jobs" Nothing { tells jobs::query }
    "query-block-jobs" Nothing { tells jobs::query_block }
    "query-block" query::Flat { asks query::devices }
    "query-named-block-nodes" query::Flat { asks query::nodes }
    "query-blockstats" figures::OfNodes { asks figures::all }
    "query-block-exports" chosen::Names { now exports::query }
    "x-debug-query-block-graph" Nothing { |at, _| Ok(block_graph::query(at.inventory).await) }
    "x-query-remotes" Nothing { |_at, _| Ok(remotes::query()) }
    "add-fd" fd_sets::Add { receives fd_sets::add }
    "remove-fd" fd_sets::Remove { now fd_sets::remove }
    "query-fdsets" Nothing { tells fd_sets::query }
    "getfd" fd_sets::Named { |at, named| fd_sets::get(named, at.passed) }
    "closefd" fd_sets::Named { |_at, named| fd_sets::close(named) }
    "quit" Nothing { |at, _| { at.steering.end().await; Ok(()) } }
    "blockdev-add" blockdev::Node { changes nodes blockdev::add }
    "blockdev-create" create::Create { |at, given| {
        let _change = at.change_nodes().await?;
        create::create(at.inventory, given)
    } }
    "x-blockdev-amend" amend::Amend { alone amend::amend }
    "blockdev-del" blockdev::Del { changes nodes blockdev::del }
    "blockdev-reopen" blockdev::Reopen { changes nodes blockdev::reopen }
    "blockdev-set-active" active::SetActive { changes nodes active::set }
    "x-blockdev-change" quorum::ChangeChildren { changes quorum::change }
    "x-blockdev-set" blockdev::SetOptions { changes blockdev::change }
    "x-blockdev-set-iothread" objects::SetIothread { now objects::set_iothread }
    "block_resize" blockdev::Resize { changes blockdev::resize }
    "blockdev-snapshot-internal-sync" snapshots::Internal { in turn snapshots::create }
    "blockdev-snapshot-delete-internal-sync" snapshots::Delete { in turn snapshots::delete }
    "block-dirty-bitmap-add" dirty_bitmaps::Add { changes dirty_bitmaps::add }
    "block-dirty-bitmap-remove" dirty_bitmaps::Which { in turn |at, which| {
        dirty_bitmaps::change(at.inventory, which, BitmapChange::Remove)
    } }
    "block-dirty-bitmap-clear" dirty_bitmaps::Which { in turn |at, which| {
        dirty_bitmaps::change(at.inventory, which, BitmapChange::Clear)
    } }
    "block-dirty-bitmap-enable" dirty_bitmaps::Which { in turn |at, which| {
        dirty_bitmaps::change(at.inventory, which, BitmapChange::Record(true))
    } }
    "block-dirty-bitmap-disable" dirty_bitmaps::Which { in turn |at, which| {
        dirty_bitmaps::change(at.inventory, which, BitmapChange::Record(false))
    } }
    "block-dirty-bitmap-merge" dirty_bitmaps::Merge { in turn dirty_bitmaps::merge }
    "x-block-dirty-bitmap-ranges" bitmap_bits::From { asks bitmap_bits::ranges }
    "x-block-dirty-bitmap-mark" bitmap_bits::Mark { in turn bitmap_bits::mark }
    "x-debug-block-dirty-bitmap-sha256" dirty_bitmaps::Which { asks dirty_bitmaps::sha256 }
    "blockdev-snapshot" overlay::Put { |at, given| {
        overlay::snapshot(at.inventory, &at.change().await?, given).await?.keep().await;
        Ok(())
    } }
    "blockdev-snapshot-sync" overlay::Make { |at, given| {
        overlay::snapshot_sync(at.inventory, &at.change().await?, given).await?.keep().await;
        Ok(())
    } }
    "cowhand-checkpoint" checkpoints::Checkpoint { |at, given| {
        checkpoints::run(at.inventory, &at.change().await?, Step::Checkpoint(given), None).await
    } }
    "cowhand-checkpoint-delete" lineage_queries::Delete { asks lineage_queries::delete }
    "cowhand-fork" checkpoints::ForkAndServe { |at, given| {
        checkpoints::run(at.inventory, &at.change().await?, Step::Fork(&given.fork), given.serve.as_ref()).await
    } }
    "cowhand-rollback" checkpoints::Rollback { |at, given| {
        checkpoints::run(at.inventory, &at.change().await?, Step::Rollback(given), None).await
    } }
    "cowhand-log" lineage_queries::Log { asks lineage_queries::log }
    "cowhand-diff" lineage_queries::Diff { asks lineage_queries::diff }
    "cowhand-gc" lineage_queries::Collect { asks lineage_queries::gc }
    "cowhand-forget" forget::Forget { asks forget::forget }
    "cowhand-publish" publish::Publish { asks publish::publish }
    // The store is asked first: other commands do not wait for it.
    "cowhand-push" publish::Push { |at, given| {
        let target = push::target(at.inventory, given).await?;
        push::push(at.inventory, &at.change_nodes().await?, target, given).await
    } }
    "cowhand-restore" restore::Restore { |at, given| {
        let source = restore::source(given).await?;
        restore::restore(at.inventory, &at.change_nodes().await?, &source, given).await
    } }
    "change-backing-file" overlay::NameBacking { changes overlay::change_backing_file }
    "block-stream" shortening::Stream { |at, given| {
        shortening::stream(at.inventory, &at.change().await?, "stream", given).await
    } }
    "block-commit" shortening::Commit { changes shortening::commit }
    "blockdev-mirror" live::Mirror { changes live::mirror }
    "drive-mirror" live::DriveMirror { |at, given| {
        let mirror = taken(&at.command.arguments)?;
        live::drive_mirror(at.inventory, &at.change().await?, (&mirror, given)).await
    } }
    "blockdev-backup" backup::Backup { |at, given| {
        backup::blockdev_backup(at.inventory, &at.change().await?, given, None).await
    } }
    "drive-backup" backup::DriveBackup { |at, given| {
        backup::drive_backup(at.inventory, &at.change().await?, given, None).await
    } }
    "transaction" transaction::Transaction { |at, given| {
        transaction::run(at.inventory, at.change().await?, given).await
    } }
    "job-pause" jobs::ById { |at, job| jobs::act(at.inventory, Newer(&job.id), |life| life.pause()) }
    "job-resume" jobs::ById { |at, job| jobs::act(at.inventory, Newer(&job.id), |life| life.resume()) }
    "job-cancel" jobs::ById { |at, job| jobs::cancel(at.inventory, Newer(&job.id), false) }
    "job-complete" jobs::ById { |at, job| jobs::complete(at.inventory, Newer(&job.id)) }
    "job-finalize" jobs::ById { |at, job| jobs::finalize(at.inventory, Newer(&job.id)).await }
    "job-dismiss" jobs::ById { |at, job| jobs::dismiss(at.inventory, Newer(&job.id)).await }
    "block-job-pause" jobs::ByDevice { |at, job| {
        jobs::act(at.inventory, Older(&job.device), |life| life.pause())
    } }
    "block-job-resume" jobs::ByDevice { |at, job| {
        jobs::act(at.inventory, Older(&job.device), |life| life.resume())
    } }
    "block-job-cancel" jobs::Cancel { |at, job| {
        jobs::cancel(at.inventory, Older(&job.device), job.force == Some(true))
    } }
    "block-job-complete" jobs::ByDevice { |at, job| jobs::complete(at.inventory, Older(&job.device)) }
    "block-job-finalize" jobs::ById { |at, job| jobs::finalize(at.inventory, Older(&job.id)).await }
    "block-job-dismiss" jobs::ById { |at, job| jobs::dismiss(at.inventory, Older(&job.id)).await }
    "block-job-set-speed" jobs::SetSpeed { |at, job| {
        jobs::act(at.inventory, Older(&job.device), |life| life.set_speed(job.speed))
    } }
    "block-job-change" jobs::Change { now jobs::change }
    "block-export-add" exports::Add { changes exports::add }
    "block-export-del" exports::Del { |at, given| exports::del(at.inventory, at.change().await?, given).await }
    "nbd-server-start" nbd_server::Start { alone nbd_server::start }
    "nbd-server-stop" Nothing { |at, _| nbd_server::stop(at.inventory, at.change().await?).await }
    "nbd-server-add" exports::AddOlder { changes exports::add_older }
    "nbd-server-remove" exports::DelOlder { alone exports::del_older }
    "chardev-add" chardevs::Device { now chardevs::add }
    "chardev-change" chardevs::Device { now chardevs::change }
    "chardev-remove" chardevs::ById { now chardevs::remove }
    "chardev-send-break" chardevs::ById { now chardevs::send_break }
    "query-chardev" Nothing { tells chardevs::query }
    "query-chardev-backends" Nothing { |_at, _| Ok(chardevs::backends()) }
    "object-add" objects::Add { alone objects::add }
    "object-del" objects::Del { alone objects::del }
    "qom-set" objects::Set { alone objects::set }
    "qom-get" objects::Get { |at, given| objects::get(at.inventory, &given.path, &given.property) }
    "qom-list" objects::List { |at, given| objects::list(at.inventory, &given.path) }
    "qom-list-types" object_types::Types { |_at, given| Ok(object_types::types(given)) }
    "qom-list-properties" object_types::Properties { |_at, given| object_types::properties(given) }
    "qom-list-get" object_types::Values { now object_types::values }
    "block_set_io_throttle" limits::SetThrottle { alone limits::set }
    "x-query-throttle" limits::OfDisk { asks limits::query }
    "block-set-write-threshold" figures::Threshold { alone figures::set_threshold }
    "block-latency-histogram-set" figures::Histograms { alone figures::set_histogram }
}
