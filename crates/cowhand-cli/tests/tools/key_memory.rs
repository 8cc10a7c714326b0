//! What a core dump, a log or an answer says of keys. The dump of a server that had crashed was sent to its vendor, and with it the keys of
//! all disks: passwords were on the heap, round keys of the cipher on stacks.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use luks::layout::{Header, MAGIC, SECTOR_BYTES, Secret};
use rustix::process::{Pid, Signal, kill_process};

use crate::peer::Bench;

const PASSWORD: &str = "a password that stands nowhere else";
/// Bytes of memory that are looked at together.
const WINDOW_BYTES: usize = 1 << 20;
/// Needles have so many bytes at least: as a block of the cipher.
const NEEDLE_BYTES: usize = 16;

/// What must not be found, by name.
type Needles = BTreeMap<String, Vec<u8>>;

#[test]
fn keys_and_passwords_are_in_no_core_dump_no_log_and_no_answer() {
    let bench = Bench::new();
    fs::write(bench.path("password"), PASSWORD).unwrap();
    let options = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
    let object = "secret,id=s,file=password";
    let made = bench.cowhand(&["create", "-q", "--object", object, "-o", options, "disk.qcow2", "16M"]);
    assert_eq!(made.code, 0, "{}", made.err);
    let needles = needles(&fs::read(bench.path("disk.qcow2")).unwrap());

    let mut server = serve(&bench, object);
    let answers = ask(&bench);
    requests(&bench);
    let found = search(server.id(), &needles);
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());

    // Otherwise nothing was looked for.
    assert!(
        found.hidden.contains(&"round key 0".to_owned()),
        "what is not dumped has the keys: {:?}",
        found.hidden
    );
    assert!(found.hidden.contains(&"password".to_owned()), "{:?}", found.hidden);
    assert_eq!(found.dumped, [""; 0], "in a core dump");
    let log = fs::read(bench.path("log")).unwrap();
    assert!(log.len() > 1000 && answers.len() > 1000, "{} {}", log.len(), answers.len());
    for (what, text) in [("log", log), ("answers", answers)] {
        let said = |needle: &[u8]| text.windows(needle.len()).any(|window| window == needle);
        let hex = |needle: &[u8]| needle.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        for (name, needle) in &needles {
            assert!(!said(needle) && !said(hex(needle).as_bytes()), "{name} is in {what}");
        }
    }
}

/// The server with a control socket, ready.
fn serve(bench: &Bench, object: &str) -> Child {
    let mut server = Command::new(env!("CARGO_BIN_EXE_cowhand"))
        .args(["serve", "--log", "trace", "--socket", "nbd.sock", "--qmp", "qmp.sock", "--object", object])
        .arg("file=disk.qcow2,encrypt.key-secret=s")
        .current_dir(bench.path(""))
        .stdout(Stdio::piped())
        .stderr(fs::File::create(bench.path("log")).unwrap())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap().starts_with("  fio")),
        "{}",
        fs::read_to_string(bench.path("log")).unwrap()
    );
    server
}

/// What the server answers to commands about disks and objects.
fn ask(bench: &Bench) -> Vec<u8> {
    let mut socket = UnixStream::connect(bench.path("qmp.sock")).unwrap();
    let commands = [
        r#"{"execute": "qmp_capabilities"}"#,
        r#"{"execute": "query-named-block-nodes"}"#,
        r#"{"execute": "query-blockstats"}"#,
        r#"{"execute": "object-add", "arguments": {"qom-type": "secret", "id": "t", "file": "password"}}"#,
        r#"{"execute": "qom-list", "arguments": {"path": "/objects/t"}}"#,
        r#"{"execute": "qom-get", "arguments": {"path": "/objects/t", "property": "data"}}"#,
    ];
    for command in commands {
        socket.write_all(format!("{command}\n").as_bytes()).unwrap();
    }
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = Vec::new();
    socket.read_to_end(&mut answers).unwrap();
    answers
}

/// Requests of all kinds: ciphered on the loop and on other threads, of parts of sectors, to clusters that are allocated and that are there.
fn requests(bench: &Bench) {
    let uri = format!("nbd+unix:///disk?socket={}", bench.path("nbd.sock").display());
    let commands = [
        "write -P 1 0 2M",
        "write -P 2 64k 4k",
        "write -P 3 100 700",
        "write -z 1M 64k",
        "flush",
        "read -P 2 64k 4k",
        "read -P 3 100 700",
        "read -P 1 128k 512k",
        "read -P 0 1M 64k",
        "write -P 4 8M 16k",
        "write -P 5 8200k 512",
        "discard 8M 64k",
        "flush",
    ];
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    let ran = bench.qemu("qemu-io", &[&["-f", "raw"], &commands[..], &[&uri]].concat());
    assert!(!ran.out.contains("failed"), "{}", ran.out);
}

/// Everything that opens the disk, and everything that is made of it.
fn needles(image: &[u8]) -> Needles {
    let place = image.windows(6).position(|window| window == MAGIC).unwrap();
    let area = &image[place..];
    let header = Header::decode(area, area.len() as u64).unwrap();
    let slot = header.slots[0];
    let start = (u64::from(slot.material_sector) * SECTOR_BYTES) as usize;
    let material = Secret::copy_of(&area[start..start + header.material_bytes(&slot)]);
    let password = Secret::new(PASSWORD.as_bytes().to_vec());
    let key = header.open_slot(&slot, &password, material).unwrap().unwrap();
    let key = key.bytes();
    let slot_key = header.hash.pbkdf2(password.bytes(), &slot.salt, slot.iterations, key.len()).unwrap();

    let mut needles = Needles::new();
    let mut add = |name: &str, bytes: &[u8]| drop(needles.insert(name.to_owned(), bytes.to_vec()));
    add("password", PASSWORD.as_bytes());
    // As HMAC has it (RFC 2104).
    for pad in [0x36, 0x5c] {
        let padded: Vec<u8> = PASSWORD.bytes().map(|byte| byte ^ pad).collect();
        add(&format!("password with {pad:#x}"), &padded);
    }
    for (name, key) in [("", key), ("slot's ", slot_key.bytes())] {
        for (half, key) in key.chunks(32).enumerate() {
            for (round, round_key) in round_keys(key.try_into().unwrap()).iter().enumerate() {
                add(&format!("{name}round key {}", half * 15 + round), round_key);
                add(&format!("{name}inverse round key {}", half * 15 + round), &mixed(round_key));
            }
        }
    }
    needles
}

/// AES-256 (FIPS 197, 5.2).
fn round_keys(key: [u8; 32]) -> Vec<[u8; 16]> {
    let mut words: Vec<[u8; 4]> = key.chunks(4).map(|word| word.try_into().unwrap()).collect();
    let mut constant = 1;
    while words.len() < 60 {
        let mut word = words[words.len() - 1];
        if words.len().is_multiple_of(8) {
            word.rotate_left(1);
            word = word.map(substituted);
            word[0] ^= constant;
            constant = times(constant, 2);
        } else if words.len() % 8 == 4 {
            word = word.map(substituted);
        }
        let before = words[words.len() - 8];
        words.push(std::array::from_fn(|at| word[at] ^ before[at]));
    }
    words.chunks(4).map(|four| four.concat().try_into().unwrap()).collect()
}

/// A round key as deciphering has it (FIPS 197, 5.3.5).
fn mixed(key: &[u8; 16]) -> [u8; 16] {
    let mut mixed = [0; 16];
    for (mixed, column) in mixed.chunks_mut(4).zip(key.chunks(4)) {
        for (row, byte) in mixed.iter_mut().enumerate() {
            *byte = [14, 11, 13, 9]
                .iter()
                .enumerate()
                .fold(0, |sum, (at, factor)| sum ^ times(column[(row + at) % 4], *factor));
        }
    }
    mixed
}

/// FIPS 197, 4.2.
fn times(one: u8, other: u8) -> u8 {
    let (mut one, mut product) = (one, 0);
    for bit in 0..8 {
        if other & 1 << bit != 0 {
            product ^= one;
        }
        one = one << 1 ^ if one & 0x80 == 0 { 0 } else { 0x1b };
    }
    product
}

/// FIPS 197, 5.1.1.
fn substituted(byte: u8) -> u8 {
    let inverse = (0..=255).find(|other| times(byte, *other) == 1).unwrap_or(0);
    (0..5).fold(0x63, |sum, bits| sum ^ inverse.rotate_left(bits))
}

#[test]
fn round_keys_are_those_of_the_standard() {
    // FIPS 197, A.3.
    let key = *b"\x60\x3d\xeb\x10\x15\xca\x71\xbe\x2b\x73\xae\xf0\x85\x7d\x77\x81\x1f\x35\x2c\x07\x3b\x61\x08\xd7\x2d\x98\x10\xa3\x09\x14\xdf\xf4";
    assert_eq!(round_keys(key)[14], *b"\xfe\x48\x90\xd1\xe6\x18\x8d\x0b\x04\x6d\xf3\x44\x70\x6c\x63\x1e");
}

/// Needles that a search found in the memory of a process, by name.
#[derive(Default)]
struct Matches {
    /// In what a core dump would have.
    dumped: Vec<String>,
    /// In what it would not have.
    hidden: Vec<String>,
}

fn search(process: u32, needles: &Needles) -> Matches {
    // Most places are no needle's: that is known by the first two bytes.
    let mut begins = vec![false; 1 << 16];
    needles
        .values()
        .for_each(|needle| begins[usize::from(u16::from_le_bytes([needle[0], needle[1]]))] = true);
    let memory = fs::File::open(format!("/proc/{process}/mem")).unwrap();
    let mut found = Matches::default();
    for mapping in mappings(process) {
        let mut at = mapping.start;
        while at < mapping.end {
            // Windows overlap by more than a needle.
            let len = (mapping.end - at).min(WINDOW_BYTES as u64) as usize;
            let mut bytes = vec![0; len];
            // Pages of a file behind its end, and the kernel's own, cannot be read.
            if memory.read_exact_at(&mut bytes, at).is_err() {
                break;
            }
            for (place, pair) in bytes.windows(2).enumerate() {
                if !begins[usize::from(u16::from_le_bytes([pair[0], pair[1]]))] {
                    continue;
                }
                for (name, needle) in needles.iter().filter(|(_, needle)| bytes[place..].starts_with(needle))
                {
                    let (names, where_) = match mapping.dumped {
                        true => (&mut found.dumped, format!("{name} in {}", mapping.line)),
                        false => (&mut found.hidden, name.clone()),
                    };
                    assert!(needle.len() >= NEEDLE_BYTES);
                    if !names.contains(&where_) {
                        names.push(where_);
                    }
                }
            }
            at += if at + len as u64 == mapping.end { len as u64 } else { (len - 256) as u64 };
        }
    }
    found
}

/// A part of a process's memory.
struct Mapping {
    start: u64,
    end: u64,
    line: String,
    dumped: bool,
}

fn mappings(process: u32) -> Vec<Mapping> {
    let text = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("smaps")).unwrap();
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        let number = |hex: &str| u64::from_str_radix(hex, 16).ok();
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        if let Some((start, end)) = range.and_then(|(start, end)| Some((number(start)?, number(end)?))) {
            mappings.push(Mapping { start, end, line: line.to_owned(), dumped: true });
        } else if let (Some(flags), Some(last)) = (line.strip_prefix("VmFlags:"), mappings.last_mut()) {
            last.dumped = !flags.split(' ').any(|flag| flag == "dd");
        }
    }
    mappings.retain(|mapping| mapping.line.split(' ').nth(1).is_some_and(|rights| rights.starts_with('r')));
    mappings
}

/// A limit on locked memory does not keep the server from starting: the password is used, and one warning
/// says what may happen to it.
#[test]
fn a_limit_on_locked_memory_is_reported_once_and_ends_nothing() {
    let bench = Bench::new();
    fs::write(bench.path("password"), PASSWORD).unwrap();
    let cowhand = env!("CARGO_BIN_EXE_cowhand");
    let without = |words: &[&str]| {
        let limited =
            ["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", "prlimit", "--memlock=0:0", cowhand];
        bench.run(Path::new("setpriv"), &[&limited, words].concat())
    };
    let object = ["--object", "secret,id=s,file=password"];
    let options = "key-secret=s,iter-time=10";
    let made = without(
        &[&["create", "-q"], &object[..], &["-f", "luks", "-o", options, "disk.luks", "1M"]].concat(),
    );
    let warning = "passwords and keys are not locked in memory";
    assert!(made.code == 0 && made.err.matches(warning).count() == 1, "{}", made.err);
    let made = bench.cowhand(&[&["map"], &object[..], &["file=disk.luks,key-secret=s"]].concat());
    assert!(made.code == 0 && !made.err.contains(warning), "{}", made.err);
}
