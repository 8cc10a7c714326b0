//! `null-co` as the format of an image: `info`, `map` and `convert -n` as by QEMU's `qemu-img`.

use std::path::Path;

use black_box::Run;
use black_box::peer::newest_qemu;

use super::{images, ours};

#[test]
fn a_disk_that_keeps_nothing_is_shown_and_written_as_by_qemu_img() {
    let Some(newest) = newest_qemu() else { return };
    let scratch = images();
    for words in [
        "info -f null-co null-co://",
        "info -f null-aio null-aio://",
        "info --limits -f null-co null-co://",
        "info --image-opts driver=null-co",
        "info --image-opts driver=file,filename=disk.raw",
        "info -f file disk.raw",
        "info --limits disk.qcow2",
        "info --limits -t none disk.qcow2",
        "info disk.qcow2",
        "map -f null-co null-co://",
        "map --output json null-co://",
        "map --output json --image-opts driver=null-co,size=1M,read-zeroes=on",
        "convert -n -O null-co disk.raw null-co://",
        "convert -n -f qcow2 -O null-co disk.qcow2 null-co://",
    ] {
        let look = |program: &Path| {
            let outcome = Run::new(program).args(words.split(' ')).current_dir(scratch.path()).outcome();
            (outcome.status.code(), outcome.stdout, outcome.stderr)
        };
        assert_eq!(look(&ours("qemu-img")), look(&newest.join("qemu-img")), "{words}");
    }
    let refused = ["convert", "-O", "null-co", "disk.raw", "made"];
    assert!(!Run::new(ours("qemu-img")).args(refused).current_dir(scratch.path()).outcome().status.success());
    assert!(!scratch.file("made").exists());
}
