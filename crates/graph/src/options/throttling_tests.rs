//! Limits on the drive line: every name, every spelling, every refusal.

use throttle::{Dialect, Direction, Flow, Setting, Weight};

use super::table::is_option_name;
use super::tests::{error, options};
use super::*;

fn throttling(rest: &str) -> ThrottleOptions {
    options(&format!("file=x,{rest}")).unwrap_or_else(|error| panic!("{rest}: {error}")).throttling
}

#[test]
fn each_name_means_the_same_on_the_line_in_json_and_in_its_short_form() {
    let mut seen = 0;
    for names in Setting::all() {
        let rest = match names.limits {
            "group" => "g".to_owned(),
            "weight" => "77".to_owned(),
            // A length alone is allowed only where it changes nothing, a size only beside a limit.
            name if name.ends_with("-length") => "1".to_owned(),
            name if name.ends_with("-max") => continue,
            "iops-size" => continue,
            _ => "5".to_owned(),
        };
        let drive = throttling(&format!("{}={rest}", names.in_dialect(Dialect::Drive)));
        assert_eq!(throttling(&format!("{}={rest}", names.in_dialect(Dialect::Legacy))), drive);
        let json = format!(r#"json:{{"file":"x","throttling":{{"{}":"{rest}"}}}}"#, names.limits);
        assert_eq!(options(&json).unwrap().throttling, drive, "{json}");
        seen += 1;
    }
    assert_eq!(seen, 6 + 6 + 2);
    let all = "throttling.iops-total=100,throttling.iops-total-max=2000,throttling.iops-total-max-length=60,\
               throttling.iops-size=4k,throttling.bps-read=1M,throttling.bps-read-max=2M,throttling.group=tenants,\
               throttling.weight=250,throttling.discard=full";
    let short = "iops=100,iops_max=2000,iops_max_length=60,iops_size=4096,bps_rd=1048576,bps_rd_max=2097152,\
                 group=tenants,weight=250,throttling.discard=full";
    let found = throttling(all);
    assert_eq!(throttling(short), found);
    let limits = found.limits.expect("limits are given");
    assert_eq!((limits.iops_size(), limits.rate(Flow::BpsRead).max), (4096, 2 << 20));
    assert_eq!((found.group.as_deref(), found.weight), (Some("tenants"), Weight::new(250).unwrap()));
    assert_eq!(found.discard, DiscardCharge::Full);
}

#[test]
fn no_limit_given_is_not_the_same_as_a_limit_of_nothing() {
    assert_eq!(throttling("cache=none"), ThrottleOptions::default());
    assert_eq!(throttling("throttling.group=g").limits, None);
    assert_eq!(throttling("iops=0").limits, None);
    let limits = throttling("iops_wr=7").limits.unwrap();
    assert_eq!(limits.rate(Flow::IopsWrite).avg, 7);
    assert_eq!(limits.piece_bytes(Direction::Write), None);
}

#[test]
fn a_refusal_speaks_the_dialect_of_the_options() {
    let table = [
        (
            "throttling.iops-total=1,throttling.iops-read=1",
            "throttling.iops-total and throttling.iops-read are both given; allowed is either the total or a limit \
             per direction",
        ),
        (
            "iops=1,iops_rd=1",
            "iops and iops_rd are both given; allowed is either the total or a limit per direction",
        ),
        (
            "iops=1,throttling.iops-total=2",
            "options throttling.iops-total and iops contradict each other: they are two names of one option; give \
             one of them",
        ),
        (
            "throttling.iops-total=1k",
            "option throttling.iops-total is \"1k\"; allowed: a whole number from 0 to 18446744073709551615",
        ),
        (
            "throttling.iops-totle=1",
            "unknown option throttling.iops-totle; did you mean throttling.iops-total?",
        ),
        ("throttling.weight=0", "throttling.weight is 0; must be 1 to 10000"),
        ("throttling.group=", "option throttling.group is \"\"; allowed: a name of 1 to 255 bytes"),
        ("throttling.discard=no", "option throttling.discard is \"no\"; allowed: cluster, full, free"),
        ("iops_sise=1,iops=1", "unknown option iops_sise; did you mean iops_size?"),
    ];
    for (rest, expected) in table {
        assert_eq!(error(rest), expected, "{rest}");
    }
    assert!(error("bps_max=1").contains("bps_max is given, but bps is not"));
}

#[test]
fn a_short_name_in_front_makes_a_drive_keyed() {
    let found = options("iops=5,file=x").unwrap();
    assert_eq!(found.throttling, throttling("throttling.iops-total=5"));
    assert!(is_option_name("throttling.iops-total") && is_option_name("bps_rd_max_length"));
}
