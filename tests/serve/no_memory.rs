//! A server whose memory is limited: a request that finds none fails, and the server goes on. It ended at the first allocation that failed,
//! with all its clients.

use std::os::unix::fs::FileExt;

use black_box::client::{Failed, Request};
use black_box::peer::qemu_img;
use black_box::server::Start;
use black_box::vhost_user::{Ask, DATA_BYTES, FrontEnd, GUEST_BASE, Machine, Ways};
use black_box::{Client, Scratch, Server};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::create;

/// NBD's number for "out of memory".
const ENOMEM: u32 = 12;

/// A request as large as any may be.
const LARGE_BYTES: usize = 32 << 20;

/// Memory that a server finds beyond what it has: with the first three not enough for the bytes of a large request, then for them, but not for
/// what is copied of them, and at last for all.
const ROOMS: [u64; 8] = [2 << 20, 12 << 20, 24 << 20, 40 << 20, 56 << 20, 72 << 20, 104 << 20, 1 << 30];
const TOO_LITTLE: u64 = 24 << 20;

#[test]
fn a_request_that_finds_no_memory_fails_and_the_server_goes_on() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "2G");
    // Less than the clients below ask for together, more than the program needs.
    let start = Start::under("prlimit", ["--as=360000000"], ["--threads", "2", &path]);
    let server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
    let data = vec![6; LARGE_BYTES];
    let mut clients: Vec<Client> = (0..10).map(|_| server.client("")).collect();
    let sent =
        |(number, client): (u64, &mut Client)| client.send(&Request::write(number * (32 << 20), &data));
    (0..).zip(&mut clients).map(sent).for_each(|sent| assert!(sent.is_ok(), "{sent:?}"));
    for client in &mut clients {
        let error = client.receive().expect("an answer").error;
        assert!(error == 0 || error == ENOMEM, "{error}");
    }
    drop(clients);
    let mut client = server.client("");
    client.write(0, &[7; 4096]).expect("a write");
    assert_eq!(client.read(0, 4096).expect("a read"), [7; 4096]);
    drop(client);
    server.stop();
}

/// What a disk of 64 MiB is made of. Reads of all of these are copied for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A qcow2 image that is encrypted.
    EncryptedImage,
    /// A raw disk in a LUKS file.
    EncryptedFile,
    Compressed,
    /// An overlay of a disk of another server.
    BaseOverNbd,
}

/// What a limit is set to: addresses (`ulimit -v`), and memory of its own, by whatever call it is asked for.
const LIMITED: [Resource; 2] = [Resource::Data, Resource::As];

/// What the disk has everywhere.
const BYTE: u8 = 0x6b;

/// Where in a guest's memory its large request is: parts, header and status, data.
const TABLE: u64 = 0x20_0000;
const HEAD: u64 = 0x21_0000;
const DATA: u64 = 0x22_0000;

const SECRET: [&str; 2] = ["--object", "secret,id=s,data=hush"];

/// A disk and its server, which has a socket for a guest, too.
struct Served {
    server: Server,
    scratch: Scratch,
    /// Has the base.
    _below: Option<Server>,
}

impl Served {
    fn new(kind: Kind) -> Self {
        let scratch = Scratch::new();
        let (raw, disk) = (scratch.write("base.raw", &vec![BYTE; 64 << 20]), scratch.name("disk"));
        let convert = |words: &[&str]| {
            qemu_img(["convert", "-q", "-f", "raw"]).args(SECRET).args(words).arg(&raw).arg(&disk).ok();
        };
        let mut below = None;
        let drive = match kind {
            Kind::EncryptedImage => {
                convert(&[
                    "-O",
                    "qcow2",
                    "-o",
                    "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
                ]);
                format!("id=disk,file={disk},encrypt.key-secret=s")
            }
            Kind::EncryptedFile => {
                convert(&["-O", "luks", "-o", "key-secret=s,iter-time=10"]);
                format!("id=disk,driver=luks,key-secret=s,file.driver=file,file.filename={disk}")
            }
            Kind::Compressed => {
                convert(&["-c", "-O", "qcow2", "-o", "cluster_size=2M"]);
                format!("id=disk,file={disk}")
            }
            Kind::BaseOverNbd => {
                let base = Server::start(["-f", "raw", "--read-only", &raw.display().to_string()]);
                qemu_img(["create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", "base.raw", &disk, "64M"])
                    .ok();
                let drive =
                    format!("id=disk,file={disk},backing.driver=raw,backing.file={}", base.uri("base"));
                below = Some(base);
                drive
            }
        };
        let start = Start::new(SECRET).args(["--threads", "1", "--vhost-user-blk"]);
        let mut server = start
            .arg(scratch.file("v.sock"))
            .arg(drive)
            .listen()
            .unwrap_or_else(|error| panic!("{}", error.0));
        let open = |server: &Server| server.stdout().contains("for a virtual machine").then_some(());
        server.wait_until(open).expect("it opens its sockets");
        Self { server, scratch, _below: below }
    }

    /// Leaves it `room` beyond what it has now of addresses, or of memory of its own.
    fn leave(&self, resource: Resource, room: u64) {
        let pid = self.server.pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let name = if resource == Resource::As { "VmSize:" } else { "VmData:" };
        let value = status.lines().find_map(|line| line.strip_prefix(name)).expect("a size");
        let kib: u64 = value.trim().trim_end_matches(" kB").parse().expect("a number");
        let limit = Rlimit { current: Some((kib << 10) + room), maximum: None };
        prlimit(Pid::from_raw(pid.cast_signed()), resource, limit).expect("a limit");
    }

    fn leave_all(&self) {
        for resource in LIMITED {
            let limit = Rlimit { current: None, maximum: None };
            prlimit(Pid::from_raw(self.server.pid().cast_signed()), resource, limit).expect("a limit");
        }
    }

    /// A guest of it.
    fn guest(&self) -> (Machine, FrontEnd) {
        let mut machine = Machine::new(Ways::default());
        let front = FrontEnd::start(&self.scratch.file("v.sock"), &mut machine);
        (machine, front)
    }
}

/// A large read (or write) of a guest at the beginning of the disk: all of its parts are in the same place of its memory. Gives its status.
fn ask_much(machine: &mut Machine, write: bool) -> u8 {
    let parts = u16::try_from(LARGE_BYTES / DATA_BYTES).expect("few");
    let (next, device_writes) = (1, 2);
    let data = next | if write { 0 } else { device_writes };
    let mut chain = vec![(HEAD, 16, next)];
    chain.extend((0..parts).map(|_| (DATA, DATA_BYTES as u32, data)));
    chain.push((HEAD + 16, 1, device_writes));
    let entry = |((at, len, flags), number): (&(u64, u32, u16), u16)| {
        [
            &(GUEST_BASE + at).to_le_bytes()[..],
            &len.to_le_bytes(),
            &flags.to_le_bytes(),
            &number.to_le_bytes(),
        ]
        .concat()
    };
    let table = chain.iter().zip(1..).flat_map(entry).collect::<Vec<u8>>();
    machine.put(TABLE, &table);
    machine.put(HEAD, &[&u32::from(write).to_le_bytes()[..], &[0; 12], &[0xff]].concat());
    machine.put_descriptor(0, 240, (GUEST_BASE + TABLE, table.len() as u32, 4, 0));
    machine.make_available(0, 240);
    machine.kick(0);
    machine.wait(0, 1);
    let mut status = [0];
    machine.memory.read_exact_at(&mut status, HEAD + 16).expect("memory");
    status[0]
}

/// Whether it was done; without memory it is that error.
fn is_done<T>(what: &str, answer: &Result<T, Failed>) -> bool {
    match answer {
        Ok(_) => true,
        Err(Failed::Refused(ENOMEM)) => false,
        Err(error) => panic!("{what}: {error:?}"),
    }
}

/// Another client works on. One byte of a compressed disk takes a whole cluster, for which there may be no memory.
fn assert_small_requests_are_served(kind: Kind, other: &mut Client, what: &str) {
    let read = other.read(40 << 20, 512);
    let is_read = is_done(what, &read);
    let is_written = is_done(what, &other.write(50 << 20, &[BYTE; 512]));
    assert!(kind == Kind::Compressed || is_read && is_written, "{what}");
    assert!(read.is_err() || read.is_ok_and(|read| read == [BYTE; 512]), "{what}");
}

fn a_client_gets_an_error_alone(kind: Kind, served: &Served) {
    let data = vec![BYTE; LARGE_BYTES];
    let (mut client, mut other) = (served.server.client("disk"), served.server.client("disk"));
    for (resource, room) in LIMITED.into_iter().flat_map(|limited| ROOMS.map(|room| (limited, room))) {
        let what = format!("{kind:?}, a client, {resource:?} {room}");
        served.leave(resource, room);
        let read = client.read(0, LARGE_BYTES as u32);
        let has_read = is_done(&what, &read);
        assert!(read.is_err() || read.is_ok_and(|read| read == data), "{what}");
        assert_small_requests_are_served(kind, &mut other, &what);
        let has_written = is_done(&what, &client.write(0, &data));
        println!("looked at {what}: read {has_read}, written {has_written}");
        if resource == Resource::Data && room <= TOO_LITTLE {
            assert!(!has_read && !has_written, "{what} is enough");
        }
        served.leave_all();
    }
    assert!(client.read(0, LARGE_BYTES as u32).is_ok_and(|read| read == data), "there is memory");
    client.write(0, &data).expect("there is memory");
}

fn a_guest_gets_an_error_alone(kind: Kind, served: &Served) {
    let (mut machine, front) = served.guest();
    let mut other = served.server.client("disk");
    let mut failed = 0;
    for (resource, room) in LIMITED.into_iter().flat_map(|limited| ROOMS.map(|room| (limited, room))) {
        let what = format!("{kind:?}, a guest, {resource:?} {room}");
        served.leave(resource, room);
        let read = ask_much(&mut machine, false);
        assert_small_requests_are_served(kind, &mut other, &what);
        machine.put(DATA, &[BYTE; DATA_BYTES]);
        let written = ask_much(&mut machine, true);
        println!("looked at {what}: statuses {read} and {written}");
        assert!(read <= 1 && written <= 1, "{what}: {read} {written}");
        failed += u32::from(read) + u32::from(written);
        served.leave_all();
        machine.ok(0, &Ask::Read(0, 512));
    }
    // Bytes of a cluster, and those of a part of a request to another server, may find room that was freed before.
    let is_in_small_parts = matches!(kind, Kind::Compressed | Kind::BaseOverNbd);
    assert!(failed > 0 || is_in_small_parts, "{kind:?}: it had all that it needed");
    machine.put(DATA, &[0; DATA_BYTES]);
    assert_eq!(ask_much(&mut machine, false), 0, "there is memory");
    let mut data = [0; DATA_BYTES];
    machine.memory.read_exact_at(&mut data, DATA).expect("memory");
    assert!(data == [BYTE; DATA_BYTES]);
    assert_eq!(ask_much(&mut machine, true), 0, "there is memory");
    drop(front);
}

const KINDS: [Kind; 4] = [Kind::EncryptedImage, Kind::EncryptedFile, Kind::Compressed, Kind::BaseOverNbd];

/// Each part has a server of its own: memory that one has freed would be there for the next.
fn alone(part: fn(Kind, &Served)) {
    std::thread::scope(|scope| {
        let parts = KINDS.map(|kind| {
            scope.spawn(move || {
                let served = Served::new(kind);
                part(kind, &served);
                let disk = served.server.client("disk").read_all().expect("a disk");
                assert!(disk == vec![BYTE; 64 << 20], "{kind:?}");
                served.server.stop();
            })
        });
        parts.into_iter().for_each(|part| part.join().expect("its server lives"));
    });
}

/// Buffers that a layer below the client's needs (what is decrypted, what was compressed, what comes from another server) were no less fatal.
#[test]
fn a_client_whose_request_finds_no_memory_in_any_layer_gets_that_error_alone() {
    alone(a_client_gets_an_error_alone);
}

/// Memory into which a guest's reads are copied was taken as if there always were some.
#[test]
fn a_guest_whose_request_finds_no_memory_gets_an_error_alone() {
    alone(a_guest_gets_an_error_alone);
}
