//! The black-box suites: which of their tests belong to the first tier, and what brings the others into a run.
//!
//! The first tier has of each suite the few tests that show its law soonest. They are named here and nowhere else, and `cargo xtask tidy`
//! looks for each of them.

/// A module of the black-box tests.
#[derive(Debug)]
pub struct Suite {
    /// The module's name.
    pub name: &'static str,
    /// Seconds that the whole of it takes on two processors that do nothing else, roughly.
    pub takes: u64,
    /// Directories and files of what it is about: a change there has it run before suites that the change reaches from further away.
    pub about: &'static [&'static str],
    /// Its tests in the first tier, by their names inside the module.
    pub first: &'static [&'static str],
}

impl Suite {
    /// The names of its tests in the first tier, as the test program has them.
    pub fn first_tests(&self) -> impl Iterator<Item = String> {
        self.first.iter().map(|test| format!("{}::{test}", self.name))
    }

    /// Whether its tests disturb others, or are disturbed by them: they measure, or mount devices that all processes see.
    pub fn is_alone(&self) -> bool {
        ALONE.contains(&self.name)
    }
}

/// The suite that is nothing without devices and mounts. Its tests run one at a time: mounting a file system looks at every device,
/// and while one with sectors larger than a page is looked at, the kernel may fail writes to it.
pub const MEDIA: &str = "media";

/// What [`Suite::is_alone`] says. Limits and the longest request are measured; a guest runs its own processors.
const ALONE: [&str; 5] = [MEDIA, "throttle", "under_faults", "libvirt", "guest"];

/// The suite of that name.
pub fn suite(name: &str) -> Option<&'static Suite> {
    SUITES.iter().find(|suite| suite.name == name)
}

/// All of them, quick ones first.
pub const SUITES: [Suite; 43] = [
    Suite {
        name: "differential",
        takes: 240,
        about: &["crates/cowhand-cli/src/compat", "crates/qcow2", "crates/job"],
        first: &[
            "commit_makes_what_qemu_img_makes",
            "check_says_what_qemu_img_says",
            "io_does_what_qemu_io_does",
        ],
    },
    Suite {
        name: "drop_in",
        takes: 8,
        about: &["crates/cowhand-cli/src/compat"],
        first: &[
            "nbd::clients_see_what_they_see_of_qemu_nbd",
            "storage_daemon::clients_see_what_they_see_of_qemus",
        ],
    },
    Suite {
        name: "serve",
        takes: 25,
        about: &[
            "crates/cowhand-cli/src/serve",
            "crates/monitor/src",
            "crates/door-nbd",
            "README.md",
            "docs/guide",
        ],
        first: &[
            "main_job::one_command_creates_a_disk_serves_it_and_prints_lines_that_run",
            "pages::the_walk_through_backups_runs_as_it_is_written",
            "ending::each_signal_that_ends_it_ends_it_in_order",
        ],
    },
    Suite {
        name: "qmp",
        takes: 75,
        about: &["crates/monitor/src", "crates/control", "crates/job", "crates/filter", "crates/graph"],
        first: &[
            "commands::a_disk_that_is_added_exported_and_removed_is_whole_and_free_again",
            "jobs::a_chain_is_made_streamed_and_committed_under_a_client_that_writes",
            "backups::the_order_of_libvirt_for_checkpoints_and_an_incremental_pull_backup_works",
            "jobs::the_order_of_libvirt_for_a_snapshot_and_a_blockcommit_works",
            "schema::the_schema_names_every_command",
        ],
    },
    Suite {
        name: "checkpoints",
        takes: 60,
        about: &[
            "crates/lineage",
            "crates/checkpoints",
            "crates/cowhand-cli/src/lineages",
            "crates/tool/src/lineages",
            "crates/monitor/src/qmp/checkpoints.rs",
            "clients/python",
        ],
        first: &[
            "live::a_rollback_switches_the_disk_below_its_clients",
            "live::a_server_that_starts_again_continues_in_the_active_layer",
        ],
    },
    Suite {
        name: "throttle",
        takes: 4,
        about: &["crates/throttle"],
        first: &["disks_that_name_a_group_share_its_limit"],
    },
    Suite {
        name: "sandbox",
        takes: 5,
        about: &["crates/monitor/src/sandbox.rs"],
        first: &["a_sandboxed_server_does_everything_with_a_ring"],
    },
    Suite {
        name: "locks",
        takes: 4,
        about: &["crates/storage"],
        first: &[
            "an_image_that_qemu_writes_is_refused_with_the_writers_pid",
            "qemu_is_kept_out_of_an_image_that_we_write",
        ],
    },
    Suite {
        name: "awaited_locks",
        takes: 8,
        about: &["crates/storage"],
        first: &[
            "a_raw_disk_is_as_long_as_the_holder_made_it",
            "every_command_takes_the_length_of_an_image_after_its_lock",
        ],
    },
    Suite {
        name: "flushes",
        takes: 2,
        about: &["crates/storage"],
        first: &["after_a_failed_flush_no_client_gets_success"],
    },
    Suite {
        name: "faults",
        takes: 6,
        about: &["crates/qcow2"],
        first: &[
            "zeroes_written_to_an_overlay_hide_the_backing_file",
            "lazy_refcounts_are_repaired_when_a_killed_image_is_opened_next",
        ],
    },
    Suite {
        name: "space",
        takes: 5,
        about: &["crates/qcow2"],
        first: &[
            "what_a_killed_server_held_in_reserve_is_free_after_the_next_start",
            "what_qemu_did_to_an_image_after_a_crash_is_left_alone",
        ],
    },
    Suite {
        name: "full_file_system",
        takes: 15,
        about: &["crates/qcow2", "crates/storage"],
        first: &["a_full_file_system_loses_nothing_of_a_disk_with_a_snapshot_and_is_closed_clean"],
    },
    Suite {
        name: "trace",
        takes: 3,
        about: &["crates/monitor/src/trace.rs"],
        first: &["a_sandboxed_server_records_a_trace_that_advice_is_based_on"],
    },
    Suite {
        name: "bitmaps_file",
        takes: 5,
        about: &["crates/qcow2", "crates/graph"],
        first: &["what_clients_write_to_a_raw_disk_is_in_its_bitmaps_when_qemu_reads_them"],
    },
    Suite {
        name: "tools",
        takes: 40,
        about: &["crates/cowhand-cli/src/copying", "crates/cowhand-cli/src/backup"],
        first: &[
            "backup::each_point_is_what_the_disk_was_and_qemu_reads_it",
            "backup::a_killed_backup_leaves_the_points_before_it_and_nothing_in_the_way",
        ],
    },
    Suite {
        name: "hostile",
        takes: 50,
        about: &["crates/qcow2", "crates/qcow2-layout"],
        first: &[
            "header::header_numbers_out_of_range_are_refused",
            "entry::an_l2_entry_never_makes_metadata_readable_or_writable",
            "reference::a_name_in_an_image_opens_nothing_but_files_beside_it",
        ],
    },
    Suite {
        name: "matrix",
        takes: 40,
        about: &["crates/qcow2", "crates/qcow2-layout"],
        first: &["overlays_of_raw_are_read_and_continued_on_both_sides"],
    },
    Suite {
        name: MEDIA,
        takes: 50,
        about: &["crates/storage"],
        first: &["a_disk_on_tmpfs_holds_what_was_written"],
    },
    Suite {
        name: "neighbours",
        takes: 12,
        about: &["crates/door-nbd", "crates/wire/src/nbd"],
        first: &["nbdcopy_brings_a_disk_in_and_out", "maps_over_nbd_are_those_of_qemu_nbd"],
    },
    Suite {
        name: "remote",
        takes: 8,
        about: &[
            "crates/remote/src/http",
            "crates/wire/src/http",
            "crates/remote/src/s3",
            "crates/net/src/tls",
        ],
        first: &["tools_read_a_disk_over_http_and_https_as_they_read_its_file"],
    },
    Suite {
        name: "rbd",
        takes: 50,
        about: &["crates/remote/src/rbd", "crates/net/src/dial/line"],
        first: &["qemu_and_cowhand_read_what_the_other_wrote_raw_and_qcow2_and_below_overlays"],
    },
    Suite {
        name: "radosgw",
        takes: 15,
        about: &["crates/remote/src/s3"],
        first: &["what_is_uploaded_is_read_back_and_nothing_is_without_the_secret"],
    },
    Suite {
        name: "cached",
        takes: 10,
        about: &["crates/remote/src/cache"],
        first: &["what_was_read_once_is_read_without_its_server_also_at_the_next_start"],
    },
    Suite {
        name: "uploads",
        takes: 25,
        about: &["crates/remote/src/s3", "crates/remote/src/http"],
        first: &["an_overlay_is_uploaded_without_what_is_below_it"],
    },
    Suite {
        name: "chunked",
        takes: 25,
        about: &["crates/remote/src/chunked"],
        first: &["a_pushed_disk_is_what_qemu_reads_of_the_file_that_is_pulled"],
    },
    Suite {
        name: "deltas",
        takes: 60,
        about: &["crates/remote/src/chunked", "crates/checkpoints"],
        first: &["of_chunks_that_have_changed_a_little_only_that_is_sent"],
    },
    Suite {
        name: "clouds",
        takes: 60,
        about: &["crates/remote/src/s3", "crates/remote/src/chunked"],
        first: &["a_checkpoint_is_published_restored_and_served_in_each_cloud"],
    },
    Suite {
        name: "packs",
        takes: 40,
        about: &["crates/remote/src/chunked"],
        first: &["a_start_of_a_packed_image_takes_few_requests"],
    },
    Suite {
        name: "pruned",
        takes: 10,
        about: &["crates/remote/src/chunked"],
        first: &["what_no_image_leads_to_is_listed_and_removed_and_what_one_leads_to_stays"],
    },
    Suite {
        name: "published",
        takes: 15,
        about: &["crates/remote/src/chunked", "crates/lineage"],
        first: &["a_later_checkpoint_costs_what_the_layers_above_the_published_one_say"],
    },
    Suite {
        name: "pushed_while_served",
        takes: 40,
        about: &["crates/remote/src/chunked", "crates/checkpoints", "crates/filter"],
        first: &["a_disk_that_is_written_is_pushed_as_it_was_when_the_job_began"],
    },
    Suite {
        name: "encrypted_images",
        takes: 15,
        about: &["crates/remote/src/chunked"],
        first: &["a_wrong_key_and_changed_and_swapped_objects_are_errors"],
    },
    Suite {
        name: "confined",
        takes: 25,
        about: &["crates/net/src/dial", "crates/remote/src/nbd", "crates/monitor/src/sandbox.rs"],
        first: &["a_disk_over_a_unix_socket_comes_back_in_the_sandbox"],
    },
    Suite {
        name: "credentials",
        takes: 15,
        about: &["crates/memory/src/secret"],
        first: &["an_image_whose_backing_name_has_a_password_is_shown_without_it"],
    },
    Suite {
        name: "far_tools",
        takes: 15,
        about: &["crates/remote/src/nbd", "crates/remote/src/http", "crates/remote/src/chunked"],
        first: &["every_tool_that_writes_is_refused_where_a_disk_is_only_read"],
    },
    Suite {
        name: "under_faults",
        takes: 15,
        about: &[
            "crates/remote/src/nbd",
            "crates/remote/src/http",
            "crates/remote/src/rbd",
            "crates/net/src/dial/line",
        ],
        first: &["over_nbd_where_it_is_written"],
    },
    Suite {
        name: "kill",
        takes: 50,
        about: &["crates/qcow2", "crates/storage"],
        first: &["kill_9_loses_nothing_that_was_flushed_in_any_cache_mode"],
    },
    Suite {
        name: "vhost_user",
        takes: 25,
        about: &["crates/door-vhost-user-blk"],
        first: &[
            "talk::a_guest_reads_what_it_wrote_however_it_describes_it",
            "crashes::requests_in_flight_at_kill_9_are_answered_once_after_a_restart",
        ],
    },
    Suite {
        name: "upgrade",
        takes: 35,
        about: &["crates/monitor/src/take_over"],
        first: &["guests::a_client_that_writes_sees_no_error_and_loses_nothing_in_several_upgrades"],
    },
    Suite {
        name: "fuse",
        takes: 25,
        about: &["crates/door-fuse"],
        first: &[
            "data::qemus_tools_take_the_file_as_the_raw_disk_that_it_is",
            "mounts::a_server_that_is_killed_leaves_no_mount",
        ],
    },
    Suite {
        name: "libvirt",
        takes: 60,
        about: &[
            "crates/cowhand-cli/src/compat",
            "crates/cowhand-cli/src/convert",
            "crates/cowhand-cli/src/create",
            "crates/tool/src/create",
        ],
        first: &["volumes::volumes_of_every_kind_are_made_cloned_and_resized"],
    },
    Suite {
        name: "guest",
        takes: 190,
        about: &["crates/door-ublk", "crates/door-vhost-user-blk", "crates/door-nbd", "crates/lineage"],
        first: &["a_linux_guest_keeps_its_file_system_over_writes_trims_and_reboots"],
    },
];
