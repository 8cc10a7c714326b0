//! `cowhand throttle explain`.

use crate::peer::Bench;

#[test]
fn limits_are_explained_in_sentences_and_drawn_under_whatever_names_they_are_given() {
    let bench = Bench::new();
    let ways: [&[&str]; 3] = [
        &["iops=100,iops_max=2000,iops_max_length=60,iops_size=4k"],
        &[
            "throttling.iops-total=100,throttling.iops-total-max=2000",
            "x-iops-total-max-length=60",
            "iops-size=4096",
        ],
        &[
            "--total-iops-sec=100",
            "--total-iops-sec-max=2000",
            "--total-iops-sec-max-length=60",
            "--size-iops-sec=4096",
        ],
    ];
    let explained = ways.map(|way| bench.cowhand(&[&["throttle", "explain"], way].concat()));
    for ran in &explained {
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        assert_eq!(ran.out, explained[0].out);
    }
    let text = &explained[0].out;
    assert!(text.contains("2000 IOPS for 60 s after idling at least 1200 s, then 100."), "{text}");
    assert!(text.contains("an 8 KiB request counts as two"), "{text}");
    assert!(text.contains("2000 IOPS |█"), "{text}");
}

#[test]
fn an_explanation_for_programs_has_the_limits_by_qmps_names_and_the_curve() {
    let bench = Bench::new();
    let ran = bench.cowhand(&["throttle", "explain", "--output=json", "bps_wr=10M,group=g,weight=50"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["limits"], serde_json::json!({ "bps-write": 10 << 20 }));
    assert_eq!((json["group"].as_str(), json["weight"].as_u64()), (Some("g"), Some(50)));
    let curve = &json["curves"][0];
    assert_eq!(curve["limit"], "bps-write");
    assert_eq!(curve["points"][1]["per-second"].as_f64(), Some(f64::from(10 << 20)));
}

#[test]
fn what_cannot_be_is_refused_in_the_words_that_were_used() {
    let bench = Bench::new();
    let table: [(&[&str], &str); 4] = [
        (&["--total-iops-sec=5", "--read-iops-sec=5"], "total-iops-sec and read-iops-sec are both given"),
        (&["iops_max=5"], "iops_max is given, but iops is not"),
        (&["iosp=5"], "unknown limit iosp; did you mean iops?"),
        (&[], "no limit is given"),
    ];
    for (words, expected) in table {
        let ran = bench.cowhand(&[&["throttle", "explain"], words].concat());
        assert_eq!(ran.code, 1, "{words:?}");
        assert!(ran.err.contains(expected), "{words:?}: {}", ran.err);
    }
    let help = bench.cowhand(&["throttle", "explain", "--help"]);
    assert!(help.out.contains("--total-iops-sec-max-length") && help.out.contains("iops_max_length=60"));
}
