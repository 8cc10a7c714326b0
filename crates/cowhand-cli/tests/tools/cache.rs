//! `cowhand cache advise`.

use crate::peer::Bench;

#[test]
fn advice_counts_the_map_of_an_image_and_names_qemus_need() {
    let bench = Bench::new();
    let options = "preallocation=metadata,cluster_size=4k";
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "-o", options, "a.qcow2", "1G"]);
    let ran = bench.cowhand(&["cache", "advise", "--output=json", "--memory=1M", "a.qcow2"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let advice = ran.json();
    // 262,144 clusters of 8 bytes; all in order, so packed they are next to nothing.
    assert_eq!(advice["qemu-bytes"], 2 << 20);
    assert_eq!(advice["memory"]["disk-bytes-covered-by-qemu"], 512 << 20);
    let packed = advice["map-bytes"].as_u64().unwrap();
    assert!(packed > 0 && packed < 1 << 20, "{advice}");
    assert_eq!(advice["memory"]["disk-bytes-covered"], 1 << 30);
    let text = bench.cowhand(&["cache", "advise", "a.qcow2"]);
    assert!(text.out.contains("2 MiB in QEMU") && text.out.contains("nothing to set"), "{}", text.out);
}

#[test]
fn a_raw_image_has_no_map_to_advise_on() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "raw", "a.raw", "1M"]);
    let ran = bench.cowhand(&["cache", "advise", "-f", "raw", "a.raw"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("raw image"), "{}", ran.err);
}
