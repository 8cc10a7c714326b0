//! Several managers on one directory, and a file system that is full in the middle.

use black_box::media::Mounted;
use black_box::peer::{assert_clean, qemu_img, qemu_io_ok};
use black_box::{Holder, Run, cowhand};

use super::Lineage;

/// Commands of two managers and a server on one lineage, all at once.
#[test]
fn managers_that_meet_wait_for_each_other() {
    const EACH: usize = 10;
    let lineage = Lineage::new();
    let disk = lineage.name("d.qcow2");
    for fork in ["a.qcow2", "b.qcow2"] {
        cowhand(["fork", "-q", &format!("{disk}@first"), &lineage.name(fork)]).ok();
    }
    let server = lineage.serve();
    std::thread::scope(|scope| {
        // Two on one disk.
        let targets = ["qmp", "a.qcow2", "b.qcow2", "b.qcow2"].map(|name| lineage.name(name));
        for (manager, target) in targets.into_iter().enumerate() {
            scope.spawn(move || {
                for number in 0..EACH {
                    cowhand(["checkpoint", "-q", &target, &format!("m{manager}-n{number}")]).ok();
                }
            });
        }
    });
    server.stop();
    let log = lineage.log();
    assert_eq!(log["layers"].as_array().expect("layers").len(), 1 + 4 * EACH);
    lineage.is_sound();
}

/// The holder of the lock is named to a manager that waited in vain.
#[test]
fn a_manager_that_waits_in_vain_reports_who_has_the_lock() {
    let lineage = Lineage::new();
    let lock = lineage.scratch.file("layers/lock");
    // QEMU's locks are those of all lineages.
    let holder = Holder::of_raw(&lock);
    let refused = cowhand(["gc", &lineage.name("d.qcow2")]).fails();
    assert!(refused.contains("qemu-io"), "{refused}");
    holder.finish(&[]);
    cowhand(["gc", "-q", &lineage.name("d.qcow2")]).ok();
}

/// No step of a command finds room: an error, and the disk as before; with room again the next command does it.
#[test]
fn on_a_full_file_system_nothing_is_lost() {
    let Some(mounted) = Mounted::tmpfs(16 << 20) else { return };
    let disk = mounted.name("d.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", &disk, "64M"]).ok();
    qemu_io_ok(&["-f", "qcow2"], &disk, &["write -P 1 0 64k"]);
    cowhand(["checkpoint", "-q", &disk, "one"]).ok();
    qemu_io_ok(&["-f", "qcow2"], &disk, &["write -P 2 0 64k"]);
    let fill = mounted.name("fill");
    for left in [0, 4, 8, 64, 200, 400, 700] {
        Run::new("dd").args(["if=/dev/zero", &format!("of={fill}"), "bs=1k"]).outcome();
        let filled = std::fs::metadata(&fill).expect("it is there").len();
        let file = std::fs::File::options().write(true).open(&fill).expect("it is ours");
        file.set_len(filled.saturating_sub(left << 10)).expect("it gets shorter");
        for words in [
            vec!["checkpoint".to_owned(), disk.clone(), format!("n{left}")],
            vec![
                "fork".to_owned(),
                format!("{disk}@one"),
                mounted.name(&format!("f{left}.qcow2")),
                "--count".to_owned(),
                "3".to_owned(),
            ],
        ] {
            let outcome = cowhand(&words).outcome();
            assert!(outcome.status.success() || outcome.stderr.contains("No space"), "{words:?}: {outcome}");
        }
        std::fs::remove_file(&fill).expect("it is ours");
        qemu_io_ok(&["-r", "-f", "qcow2"], &disk, &["read -P 2 0 64k"]);
        assert_clean(disk.as_ref());
    }
    cowhand(["checkpoint", "-q", &disk, "last"]).ok();
    let log = cowhand(["log", "--output", "json", &disk]).json();
    for image in
        log["layers"].as_array().expect("layers").iter().chain(log["disks"].as_array().expect("disks"))
    {
        assert_clean(image["file"].as_str().expect("a path").as_ref());
    }
}
