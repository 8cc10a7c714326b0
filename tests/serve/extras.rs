//! What packaging/ has around the program works as it is: the alert rules and the dashboard name figures that a server exports, the pod asks for no rights, the
//! hook of libvirt starts and stops the right unit, the container and the unit give nothing that is not needed.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use black_box::server::{NotStarted, Start};
use black_box::{Run, Scratch, Server, cowhand};

use super::create;

const RULES: &str = include_str!("../../packaging/monitoring/cowhand.rules.yml");
const DASHBOARD: &str = include_str!("../../packaging/monitoring/cowhand-dashboard.json");
const POD: &str = include_str!("../../packaging/examples/kubernetes.yaml");
const CONTAINER: &str = include_str!("../../packaging/Containerfile");
const UNIT: &str = include_str!("../../packaging/cowhand@.service");
const CONFIGURATION: &str = include_str!("../../packaging/vm1.toml");

fn packaged(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(name)
}

/// Names of figures in `text`.
fn figures(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
    words.filter(|word| word.starts_with("cowhand_")).collect()
}

/// YAML as JSON, by Python's parser.
fn yaml(text: &str) -> Vec<serde_json::Value> {
    let script = "import json, sys, yaml\nprint(json.dumps(list(yaml.safe_load_all(sys.stdin))))";
    let documents = Run::new("/usr/bin/python3").args(["-c", script]).input(text).ok();
    serde_json::from_str(&documents).expect("JSON")
}

/// The figures of remote disks are there where a disk is one; `cargo xtask tidy` knows all names.
#[test]
fn rules_and_dashboard_name_figures_that_a_server_exports() {
    let scratch = Scratch::new();
    let disk = create(&scratch, "disk.qcow2", "1G");
    let mut server = Server::start(["--metrics", "0", &disk]);
    // What has counted nothing has no buckets.
    server.client("disk").write(0, &[1; 4096]).expect("a write");
    let address = black_box::metrics::address(&mut server);
    let url = format!("http://{address}/metrics");
    let exported = Run::new("curl").args(["--silent", "--fail", &url]).ok();
    let exported: BTreeSet<&str> = exported
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let is_there = |name: &&&str| !exported.contains(**name) && !name.starts_with("cowhand_remote_");
    for (file, text) in [("rules", RULES), ("dashboard", DASHBOARD)] {
        let names = figures(text);
        assert!(names.len() > 7, "{names:?}");
        let lost: Vec<_> = names.iter().filter(is_there).collect();
        // Limits have figures where there are some.
        let lost: Vec<_> = lost.into_iter().filter(|name| !name.starts_with("cowhand_throttle_")).collect();
        assert!(lost.is_empty(), "{file}: {lost:?} are not among {exported:?}");
    }
    server.stop();
}

#[test]
fn every_rule_says_what_is_wrong_and_every_panel_asks_for_something() {
    let rules = yaml(RULES);
    let rules = rules[0]["groups"][0]["rules"].as_array().expect("rules");
    for rule in rules {
        let [name, expression] = ["alert", "expr"].map(|key| rule[key].as_str().unwrap_or_default());
        // Prometheus itself says whether a server answers.
        let is_ours = expression.contains("cowhand_") || expression.starts_with("up{");
        assert!(!name.is_empty() && is_ours, "{rule}");
        assert!(
            ["critical", "warning", "info"].map(Some).contains(&rule["labels"]["severity"].as_str()),
            "{rule}"
        );
        for key in ["summary", "description"] {
            assert!(rule["annotations"][key].as_str().is_some_and(|text| text.len() > 20), "{name}: {key}");
        }
    }
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let numbers: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(numbers.len(), panels.len());
    for panel in panels {
        let targets = panel["targets"].as_array().expect("targets");
        assert!(
            !targets.is_empty()
                && targets.iter().all(|target| !figures(&target["expr"].to_string()).is_empty())
        );
    }
}

#[test]
fn the_pod_asks_for_no_rights_and_its_command_is_one() {
    let documents = yaml(POD);
    let pods: Vec<_> = documents.iter().filter(|document| document["kind"] == "Pod").collect();
    assert_eq!(pods.len(), 2, "over a file and over a block volume");
    for pod in &pods {
        let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(spec["automountServiceAccountToken"], false);
        let rights = &container["securityContext"];
        assert_eq!(rights["allowPrivilegeEscalation"], false);
        assert_eq!(rights["readOnlyRootFilesystem"], true);
        assert_eq!(rights["capabilities"]["drop"][0], "ALL");
    }
    // The device of the claim is the disk that is served.
    let block = &pods[1]["spec"]["containers"][0];
    let device = block["volumeDevices"][0]["devicePath"].as_str().expect("a path");
    let drive = block["args"].as_array().expect("arguments").last().expect("a drive");
    assert!(drive.as_str().expect("text").starts_with(&format!("file={device},")), "{drive}");
    // The first pod's arguments as they are, on paths of this machine.
    let container = &pods[0]["spec"]["containers"][0];
    let scratch = Scratch::new();
    let words =
        container["args"].as_array().expect("arguments").iter().map(|word| word.as_str().expect("text"));
    let words: Vec<String> = words
        .skip(1)
        .map(|word| match word.rsplit_once('/') {
            Some((_, name)) => scratch.name(name),
            None if word.starts_with("0.0.0.0:") => "127.0.0.1:0".to_owned(),
            None => word.to_owned(),
        })
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| *word != "--quiet").collect();
    let started = Start::new(words).listening_on(scratch.name("disk.sock")).listen();
    let server = started.unwrap_or_else(|NotStarted(outcome)| panic!("{outcome}"));
    cowhand(["status", &scratch.name("disk.qmp")]).ok();
    server.stop();
}

#[test]
fn the_hook_of_libvirt_starts_and_stops_the_unit_of_domains_that_have_one_and_no_other() {
    let scratch = Scratch::new();
    let systemctl = scratch.write("systemctl", b"#!/bin/sh\necho \"$@\" >> \"$CALLS\"\n");
    std::fs::set_permissions(&systemctl, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    for name in ["vm1.toml", "a b.toml", "-x.toml"] {
        scratch.write(name, b"");
    }
    let path = format!("{}:/usr/bin:/bin", scratch.path().display());
    let calls = scratch.name("calls");
    for (words, expected) in [
        (["vm1", "prepare", "begin"], "start cowhand@vm1.service\n"),
        (["vm1", "release", "end"], "stop cowhand@vm1.service cowhand@vm1.socket\n"),
        (["vm1", "started", "begin"], ""),
        (["vm1", "migrate", "begin"], ""),
        (["other", "prepare", "begin"], ""),
        (["a b", "prepare", "begin"], ""),
        (["../vm1", "prepare", "begin"], ""),
        (["", "prepare", "begin"], ""),
    ] {
        scratch.write("calls", b"");
        let hook = Run::new(packaged("examples/libvirt-hook")).args(words).arg("-").env("PATH", &path);
        hook.env("CALLS", &calls).env("COWHAND_CONFIGURATIONS", scratch.path()).ok();
        assert_eq!(std::fs::read_to_string(&calls).expect("calls"), expected, "{words:?}");
    }
    // A unit that does not start keeps the domain from starting.
    scratch.write("systemctl", b"#!/bin/sh\nexit 1\n");
    let hook = Run::new(packaged("examples/libvirt-hook")).args(["vm1", "prepare", "begin", "-"]);
    hook.env("PATH", &path).env("COWHAND_CONFIGURATIONS", scratch.path()).fails();
}

#[test]
fn the_container_is_a_users_and_the_unit_can_be_reloaded_with_rights_in_its_own_directory() {
    let user = CONTAINER.lines().find_map(|line| line.strip_prefix("USER ")).expect("a user");
    assert!(user.split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id > 0)), "{user}");
    for line in ["StateDirectory=cowhand", "NoNewPrivileges=yes", "CapabilityBoundingSet="] {
        assert!(UNIT.lines().any(|found| found == line), "{line}");
    }
    let line = |name: &str| UNIT.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    assert!(line("ExecStart=").contains("--take-over-socket /run/cowhand-%i/next"));
    assert!(line("ExecReload=").contains("--take-over /run/cowhand-%i/next"));
    // Backups, snapshots and copies in the first hour lead there.
    assert!(CONFIGURATION.lines().any(|line| line == "allow-path = [\"/var/lib/cowhand\"]"));
}
