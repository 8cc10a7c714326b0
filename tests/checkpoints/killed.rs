//! Kill -9 at any moment of any command: each disk reads as before or as after, and nothing is left that belongs to nothing.

use std::time::Duration;

use black_box::bytes::are_all;
use black_box::peer::converted;
use black_box::qmp::Qmp;
use black_box::random::number;
use black_box::{Random, cowhand};
use serde_json::json;

use super::Lineage;

/// Kills of each kind; `COWHAND_KILL_ROUNDS` says otherwise.
const ROUNDS: u64 = 20;
/// A command takes some milliseconds; the rest of the time it starts.
const DELAY_MAX: Duration = Duration::from_millis(60);

fn rounds() -> u64 {
    number("COWHAND_KILL_ROUNDS").unwrap_or(ROUNDS)
}

fn content(lineage: &Lineage) -> u8 {
    let bytes = converted(&lineage.name("d.qcow2"), "qcow2", &[], &lineage.scratch.file("raw"));
    assert!(are_all(&bytes[..65536], bytes[0]), "a disk is torn");
    bytes[0]
}

/// Files in the directory of the layers that are neither layers nor the lineage's own.
fn leftovers(lineage: &Lineage) -> Vec<String> {
    let names = std::fs::read_dir(lineage.scratch.file("layers")).expect("layers");
    let names = names.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
    let known = |name: &String| ["layers", "lineage.json", "lock", "merge.lock"].contains(&name.as_str());
    names.filter(|name| !known(name) && name.len() != "0123456789abcdef.qcow2".len()).collect()
}

/// Commands, each of which is killed in its turn; what the disk reads as when it was not.
const COMMANDS: [(&[&str], bool); 7] = [
    (&["checkpoint", "d.qcow2", "NAME"], false),
    (&["rollback", "d.qcow2", "@one"], true),
    (&["gc", "--unnamed", "--remove", "d.qcow2"], false),
    (&["fork", "--count", "3", "d.qcow2@one", "NAME.qcow2"], false),
    (&["checkpoint", "d.qcow2"], false),
    (&["forget", "--keep", "last:1", "d.qcow2"], false),
    (&["checkpoint", "--delete", "d.qcow2@two"], false),
];

/// Each fork that is there is whole, and goes.
fn take_forks_away(lineage: &Lineage, name: &str) {
    for number in 1..=3 {
        let file = format!("{name}-{number}.qcow2");
        if lineage.scratch.file(&file).exists() {
            let bytes = converted(&lineage.name(&file), "qcow2", &[], &lineage.scratch.file("raw"));
            assert!(are_all(&bytes[..65536], 1), "{file}");
            std::fs::remove_file(lineage.scratch.file(&file)).expect("a fork");
        }
    }
}

#[test]
fn a_command_that_is_killed_leaves_the_disk_as_before_or_as_after() {
    let lineage = Lineage::new();
    let (disk, mut random) = (lineage.name("d.qcow2"), Random::new(number("COWHAND_KILL_SEED").unwrap_or(1)));
    let write = |value: u8| {
        cowhand(["io", "-f", "qcow2", "-c", &format!("write -P {value} 0 64k"), &disk]).ok();
    };
    write(1);
    cowhand(["checkpoint", "-q", &disk, "one"]).ok();
    let mut killed = [0; COMMANDS.len()];
    for round in 0..rounds().max(COMMANDS.len() as u64 * 3) {
        // Layers without a name, so that there is something to forget and to merge.
        cowhand(["checkpoint", "-q", &disk]).ok();
        let value = 2 + (round % 200) as u8;
        write(value);
        if !lineage.log().to_string().contains("\"two\"") {
            cowhand(["checkpoint", "-q", &disk, "two"]).ok();
        }
        let which = round as usize % COMMANDS.len();
        let (words, is_rolled_back) = COMMANDS[which];
        let name = format!("n{round}");
        let words: Vec<String> = words.iter().map(|word| word.replace("NAME", &name)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let delay = Duration::from_micros(random.below(DELAY_MAX.as_micros() as u64));
        // Each is killed at once the first time: no machine is so fast that it ends before.
        let delay = if round < COMMANDS.len() as u64 { Duration::ZERO } else { delay };
        killed[which] += u64::from(cowhand(&words).current_dir(lineage.scratch.path()).killed_after(delay));
        let found = content(&lineage);
        assert!(found == value || is_rolled_back && found == 1, "round {round}: {found}");
        // The next command brings all in order.
        cowhand(["gc", "-q", &disk]).ok();
        take_forks_away(&lineage, &name);
        assert_eq!(leftovers(&lineage), [""; 0], "round {round}: {words:?}");
        assert_eq!(content(&lineage), found);
        cowhand(["rollback", "-q", &disk, "@one"]).ok();
        assert_eq!(content(&lineage), 1);
    }
    assert!(killed.iter().all(|count| *count > 0), "commands that were not killed: {killed:?}");
    lineage.is_sound();
}

/// The server is killed while it takes a checkpoint: what a client had flushed is in the disk, under the path that it had.
#[test]
fn a_server_that_is_killed_in_a_checkpoint_loses_nothing_that_was_flushed() {
    let lineage = Lineage::new();
    let mut random = Random::new(number("COWHAND_KILL_SEED").unwrap_or(2));
    let mut layers = 1;
    for round in 0..rounds() {
        let server = lineage.serve();
        let mut client = server.client("");
        if round > 0 {
            let before = (round - 1) % 250 + 1;
            assert!(are_all(&client.read(0, 65536).expect("a read"), before as u8), "round {round}");
        }
        let value = (round % 250 + 1) as u8;
        client.write(0, &[value; 65536]).expect("a write");
        client.flush().expect("a flush");
        let mut qmp = Qmp::connect(lineage.name("qmp").as_ref());
        let command = json!({ "execute": "cowhand-checkpoint", "arguments": { "node-name": "d", "name": format!("n{round}") } });
        qmp.send(format!("{command}\n").as_bytes()).expect("it listens");
        std::thread::sleep(Duration::from_micros(random.below(12_000)));
        // What is flushed meanwhile counts, too.
        client.write(1 << 20, &[value; 4096]).expect("a write");
        client.flush().expect("a flush");
        server.kill();
        let bytes = converted_when_free(&lineage);
        assert!(are_all(&bytes[..65536], value), "round {round}: a flushed write is lost");
        assert!(are_all(&bytes[1 << 20..(1 << 20) + 4096], value), "round {round}: a flushed write is lost");
        cowhand(["gc", "-q", &lineage.name("d.qcow2")]).ok();
        assert_eq!(leftovers(&lineage), [""; 0], "round {round}");
        let now = lineage.log()["layers"].as_array().expect("layers").len();
        assert!(now == layers || now == layers + 1, "round {round}: {layers} layers, then {now}");
        layers = now;
    }
    // The disk that was killed last may leak.
    cowhand(["check", "-q", "-r", "leaks", &lineage.name("d.qcow2")]).outcome();
    let log = lineage.log();
    for layer in log["layers"].as_array().expect("layers") {
        black_box::peer::assert_leaks_at_most(layer["file"].as_str().expect("a path").as_ref());
    }
}

/// The kernel keeps the locks of a killed process until what it had in flight has ended.
fn converted_when_free(lineage: &Lineage) -> Vec<u8> {
    black_box::peer::assert_leaks_at_most(lineage.name("d.qcow2").as_ref());
    converted(&lineage.name("d.qcow2"), "qcow2", &[], &lineage.scratch.file("raw"))
}
