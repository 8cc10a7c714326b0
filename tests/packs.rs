//! Packs: a start takes few requests, what is read is the disk whatever became of them, and none is removed that a start list names.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::{Duration, Instant};

use black_box::peer::{qemu_img, qemu_io_ok};
use black_box::random::Random;
use black_box::server::Server;
use black_box::{Run, StoreFault, StoreScene, cowhand};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;
const NAME: &str = "s3://images/vms/d";
const FOLDER: &str = "s3://images/vms";
/// Chunks of the disk; one of them is zeroes.
const CHUNKS: usize = 24;
const ZEROES: usize = 5;
/// Chunks that a start reads, in this order: three packs.
const START: [usize; 21] = [0, 17, 3, 20, ZEROES, 9, 1, 14, 22, 2, 18, 7, 11, 4, 23, 15, 6, 10, 21, 8, 13];
/// Those with data.
const WITH_DATA: usize = START.len() - 1;
/// How long a request may take to come.
const COMES_WITHIN: Duration = Duration::from_secs(60);

/// A published disk, half of it text, and a store behind a way that loses things.
struct Scene(StoreScene);

impl Deref for Scene {
    type Target = StoreScene;

    fn deref(&self) -> &StoreScene {
        &self.0
    }
}

/// After so many reads requests with this mark must have come, so many of them, before the start goes on.
type Awaited = (usize, &'static str, usize);

/// What a start took.
struct Taken {
    requests: Vec<String>,
    bytes: u64,
    log: String,
}

impl Taken {
    fn count(&self, mark: &str) -> usize {
        self.requests.iter().filter(|line| line.contains(mark)).count()
    }
}

impl Scene {
    fn new() -> Self {
        Self::published(&[])
    }

    /// `key` are arguments of the owner of a key.
    fn published(key: &[&str]) -> Self {
        let scene = Self(StoreScene::new());
        let mut disk = Random::of_name("packs").bytes(CHUNKS * MIB);
        for (number, chunk) in disk.chunks_mut(MIB).enumerate().filter(|(number, _)| number % 2 == 0) {
            let text = format!("all work and no play {number} ").into_bytes();
            text.iter().cycle().zip(chunk).for_each(|(letter, byte)| *byte = *letter);
        }
        disk[ZEROES * MIB..(ZEROES + 1) * MIB].fill(0);
        scene.scratch.write("disk.raw", &disk);
        scene.scratch.write("vm.key", &Random::of_name("key").bytes(32));
        let (raw, name) = (scene.scratch.name("disk.raw"), scene.scratch.name("d.qcow2"));
        qemu_img(["convert", "-f", "raw", "-O", "qcow2", &raw, &name]).ok();
        scene.run(&["checkpoint", "-q", "d.qcow2", "one"]).ok();
        scene.run(&[&["publish", "-q"], key, &["d.qcow2@one", NAME]].concat()).ok();
        scene
    }

    fn disk(&self) -> Vec<u8> {
        std::fs::read(self.scratch.file("disk.raw")).expect("a disk")
    }

    /// A new disk that begins as `image`, and its backing file.
    fn restore(&self, key: &[&str], image: &str, disk: &str) -> String {
        let made = self.run(&[&["restore", "--output", "json"], key, &[image, disk]].concat()).json();
        made["backing"].as_str().expect("a name").to_owned()
    }

    /// Serves a new disk that begins as `image`, and reads of it what a start reads.
    fn start(&self, words: &[&str], image: &str, bytes: &[u8]) -> Taken {
        self.start_in_turn(words, image, bytes, &[])
    }

    /// The same, with requests that are waited for.
    fn start_in_turn(&self, words: &[&str], image: &str, bytes: &[u8], awaited: &[Awaited]) -> Taken {
        let key = words.iter().take_while(|word| **word != "--trace").copied().collect::<Vec<_>>();
        let backing = match key.is_empty() {
            true => self.restore(&[], image, "r.qcow2"),
            false => self.restore(&[&key[..], &["--encrypt-key-secret", "k"]].concat(), image, "r.qcow2"),
        };
        let disk = self.scratch.name("r.qcow2");
        drop(self.way.requests());
        self.way.answered_bytes();
        let words = words.iter().copied().chain(["--allow-name", &backing, &disk]).map(str::to_owned);
        let (server, qmp) = self.serve_with(format!("http://{}", self.way.address()), words);
        drop(qmp);
        let requests = self.read_start(&server, bytes, awaited);
        let log = server.stderr();
        server.stop();
        std::fs::remove_file(disk).expect("the restored disk");
        let requests = [requests, self.way.requests()].concat();
        Taken { requests, bytes: self.way.answered_bytes(), log }
    }

    fn read_start(&self, server: &Server, bytes: &[u8], awaited: &[Awaited]) -> Vec<String> {
        let (mut client, mut requests) = (server.client("r"), Vec::new());
        for (number, chunk) in START.into_iter().enumerate() {
            let at = chunk * MIB + 4096 * number;
            let read = client.read(at as u64, 4096).expect("a read");
            assert!(read == bytes[at..at + 4096], "chunk {chunk} is another one");
            let until = Instant::now() + COMES_WITHIN;
            for (_, mark, count) in awaited.iter().filter(|(reads, ..)| *reads == number + 1) {
                loop {
                    requests.extend(self.way.requests());
                    let came = requests.iter().filter(|line: &&String| line.contains(mark)).count();
                    if came >= *count {
                        break;
                    }
                    assert!(Instant::now() < until, "{mark} after read {number}: {requests:#?}");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
        requests
    }

    /// Records a start, and packs what it read.
    fn pack(&self) -> Value {
        let trace = self.scratch.name("start.trace");
        self.start(&["--trace", &trace], NAME, &self.disk());
        self.pack_again()
    }

    fn pack_again(&self) -> Value {
        self.run(&["pack", "--output", "json", "start.trace", NAME]).json()
    }

    fn list(&self) -> Value {
        serde_json::from_slice(&self.store.get("/images/vms/d.start").expect("a list")).expect("JSON")
    }

    fn put_list(&self, list: &Value) {
        self.store.put("/images/vms/d.start", list.to_string().as_bytes());
    }

    /// The paths of packs that are there.
    fn packs(&self) -> BTreeSet<String> {
        let is_pack = |key: &String| key.contains("/packs/") && !key.ends_with("/notes");
        let keys = self.store.keys("images").into_iter().filter(is_pack);
        keys.map(|key| format!("/images/{key}")).collect()
    }

    fn prune(&self, words: &[&str]) -> Value {
        self.run(&[&["prune", "--output", "json"], words, &[FOLDER]].concat()).json()
    }
}

/// When a start has read as far, packs have been asked for: two of them after the first chunk, the third when the first one is read.
const IN_TURN: [Awaited; 2] = [(1, "/packs/", 2), (10, "/packs/", 3)];
const LIST: [Awaited; 1] = [(1, ".start", 1)];
const ONE_PACK: [Awaited; 1] = [(1, "/packs/", 1)];

/// A guest that booted from a store waited for each megabyte that it read, one after the other.
#[test]
fn a_start_of_a_packed_image_takes_few_requests() {
    let scene = Scene::new();
    let bytes = scene.disk();
    let trace = scene.scratch.name("start.trace");
    let before = scene.start(&["--trace", &trace], NAME, &bytes);
    // Each chunk, and their table; there is no list.
    assert_eq!(before.count("GET /images/vms/chunks/"), WITH_DATA + 1, "{:#?}", before.requests);
    assert_eq!((before.count(".start"), before.count("/packs/")), (1, 0), "{:#?}", before.requests);
    let packed = scene.pack_again();
    let number = |name: &str| packed[name].as_u64().expect("a number");
    assert_eq!((number("chunks"), number("packs"), number("uploaded")), (WITH_DATA as u64, 3, 3), "{packed}");
    assert_eq!((&packed["changed"], &packed["cut"]), (&true.into(), &false.into()), "{packed}");
    assert_eq!(packed["list"], "s3://images/vms/d.start");
    let sizes =
        scene.packs().iter().map(|pack| scene.store.get(pack).expect("a pack").len() as u64).sum::<u64>();
    assert_eq!((number("bytes"), number("uploaded-bytes")), (sizes, sizes));
    let said = scene.run(&["pack", "start.trace", NAME]).ok();
    assert!(
        said.contains("a start reads 20 chunks in 3 packs") && said.contains("nothing has changed"),
        "{said}"
    );

    let after = scene.start_in_turn(&[], NAME, &bytes, &IN_TURN);
    // The manifest; the table, the first chunk, and none by itself after it; the list and the packs.
    let counts = (after.count("/chunks/"), after.count(".start"), after.count("/packs/"));
    assert_eq!((counts, after.requests.len()), ((2, 1, 3), 7), "{:#?}", after.requests);
    assert_eq!(before.requests.len(), 23, "{:#?}", before.requests);
    // The first chunk comes twice.
    assert!(after.bytes < before.bytes + (64 << 10), "{} and {}", after.bytes, before.bytes);
}

/// What is fetched ahead is an advice of every client that may write to the bucket.
#[test]
fn packs_that_are_damaged_lost_or_of_something_else_cost_time_alone() {
    let scene = Scene::new();
    scene.pack();
    let bytes = scene.disk();
    let good = scene.list();
    let packs: Vec<String> = good["packs"].as_array().expect("packs").iter().map(name_of).collect();
    let path = format!("/images/vms/packs/{}", packs[0]);
    let pack = scene.store.get(&path).expect("a pack");
    let mut flipped = pack.clone();
    *flipped.last_mut().expect("a byte") ^= 1;
    for (bytes_of_pack, says) in [
        (Some(&flipped[..]), "this pack is damaged"),
        (Some(&pack[1..]), "must have"),
        (Some(&[&pack[..], b"x"].concat()), "nothing more is fetched ahead"),
        (None, "this pack is missing"),
    ] {
        match bytes_of_pack {
            Some(pack) => scene.store.put(&path, pack),
            None => scene.store.delete(&path),
        }
        let taken = scene.start_in_turn(&[], NAME, &bytes, &ONE_PACK);
        assert!(taken.log.contains(says), "{says}: {}", taken.log);
    }
    scene.store.put(&path, &pack);

    let changed = |change: &dyn Fn(&mut Value)| {
        let mut list = good.clone();
        change(&mut list);
        list
    };
    let chunks = "/packs/0/chunks";
    // Names of other disks, places of other chunks, and chunks that no disk has: none of it is asked for.
    for list in [
        changed(&|list| list["chunk-size"] = (2 * MIB).into()),
        changed(&|list| list["packs"] = json!([])),
        changed(&|list| for_each_chunk(list, |chunk| chunk["name"] = "ab".repeat(32).into())),
        changed(&|list| for_each_chunk(list, |chunk| chunk["chunk"] = (1_u64 << 60).into())),
        changed(&|list| for_each_chunk(list, |chunk| chunk["chunk"] = ZEROES.into())),
    ] {
        scene.put_list(&list);
        let taken = scene.start_in_turn(&[], NAME, &bytes, &LIST);
        assert_eq!(taken.count("/packs/"), 0, "{:#?}", taken.requests);
    }
    // Two chunks of noise in each other's place: their lengths fit.
    let swapped = changed(&|list| {
        let list = list.pointer_mut(chunks).and_then(Value::as_array_mut).expect("chunks");
        let noise: Vec<usize> = (0..list.len()).filter(|at| list[*at]["bytes"] == MIB).collect();
        list.swap(noise[0], noise[1]);
    });
    scene.put_list(&swapped);
    let taken = scene.start_in_turn(&[], NAME, &bytes, &ONE_PACK);
    assert!(taken.log.contains("this pack is damaged"), "{}", taken.log);
    for list in [
        b"no list".to_vec(),
        vec![b' '; 2 * MIB],
        changed(&|list| list["version"] = 2.into()).to_string().into_bytes(),
        changed(&|list| list["more"] = 2.into()).to_string().into_bytes(),
    ] {
        scene.store.put("/images/vms/d.start", &list);
        let taken = scene.start_in_turn(&[], NAME, &bytes, &LIST);
        assert_eq!(taken.count("/packs/"), 0, "{:#?}", taken.requests);
    }
    scene.put_list(&good);
    for fault in [
        ("GET /images/vms/d.start", StoreFault::Status(403)),
        ("GET /images/vms/d.start", StoreFault::Reset),
        ("GET /images/vms/packs/", StoreFault::Status(403)),
        ("GET /images/vms/packs/", StoreFault::Status(503)),
        ("GET /images/vms/packs/", StoreFault::LostAnswer),
        ("GET /images/vms/packs/", StoreFault::Silence),
    ] {
        scene.way.plan(&[fault]);
        let awaited = if fault.0.contains("packs") { &ONE_PACK } else { &LIST };
        scene.start_in_turn(&[], NAME, &bytes, awaited);
        assert_eq!(scene.way.left(), [], "{fault:?}");
    }
}

fn name_of(entry: &Value) -> String {
    entry["name"].as_str().expect("a name").to_owned()
}

fn for_each_chunk(list: &mut Value, change: impl Fn(&mut Value)) {
    let packs = list["packs"].as_array_mut().expect("packs").iter_mut();
    packs.flat_map(|pack| pack["chunks"].as_array_mut().expect("chunks")).for_each(change);
}

/// Packs would have to be made again for each checkpoint, and for each fork.
#[test]
fn later_checkpoints_use_the_list_of_their_name_and_forks_take_it_over() {
    let scene = Scene::new();
    scene.pack();
    let list = scene.store.get("/images/vms/d.start").expect("a list");
    qemu_io_ok(&["-f", "qcow2"], &scene.scratch.name("d.qcow2"), &["write -P 7 17M 64k"]);
    scene.run(&["checkpoint", "-q", "d.qcow2", "two"]).ok();
    drop(scene.way.requests());
    let two = scene.run(&["publish", "--output", "json", "d.qcow2@two", NAME]).json();
    let requests = scene.way.requests();
    assert!(!requests.iter().any(|line| line.contains(".start")), "{requests:#?}");
    scene.run(&["fork", "-q", "d.qcow2@one", "f.qcow2"]).ok();
    qemu_io_ok(&["-f", "qcow2"], &scene.scratch.name("f.qcow2"), &["write -P 9 12M 64k"]);
    scene.run(&["checkpoint", "-q", "f.qcow2", "forked"]).ok();
    scene.run(&["publish", "-q", "f.qcow2@forked", "s3://images/vms/f"]).ok();
    assert_eq!(scene.store.get("/images/vms/f.start").as_deref(), Some(&list[..]));
    let (first, second) = (scene.disk(), scene.bytes("d.qcow2"));
    let forked = scene.bytes("f.qcow2");
    let lasting = two["parent"].as_str().expect("a name").to_owned();
    // Of the second checkpoint one chunk of a pack is another one, which is fetched by itself.
    for (image, bytes, alone) in
        [(NAME, &second, 3), (&*lasting, &first, 2), ("s3://images/vms/f", &forked, 2)]
    {
        let taken = scene.start_in_turn(&[], image, bytes, &IN_TURN);
        assert_eq!(
            (taken.count("/packs/"), taken.count("/chunks/")),
            (3, alone),
            "{image}: {:#?}",
            taken.requests
        );
    }
    // What is at the store of the chunk that is a delta is in its pack: the base of later ones, too.
    let again = scene.pack_again();
    assert_eq!((&again["changed"], &again["uploaded"]), (&false.into(), &0.into()), "{again}");
    // Both lists name the same packs: none of them is unused.
    let unused = scene.prune(&["--unused-for", "0s"]);
    assert_eq!((&unused["unused"], &unused["packs"]), (&json!([]), &3.into()), "{unused}");
}

/// A folder was never empty again, or a fork lost what its origin replaced.
#[test]
fn packs_and_lists_that_no_image_needs_are_removed_and_no_others() {
    let scene = Scene::new();
    scene.pack();
    let (first, list) = (scene.packs(), scene.store.get("/images/vms/d.start").expect("a list"));
    // Another start: the fork still has the list of the first one.
    scene.run(&["fork", "-q", "d.qcow2@one", "f.qcow2"]).ok();
    qemu_io_ok(&["-f", "qcow2"], &scene.scratch.name("f.qcow2"), &["write -P 9 12M 64k"]);
    scene.run(&["checkpoint", "-q", "f.qcow2", "forked"]).ok();
    scene.run(&["publish", "-q", "f.qcow2@forked", "s3://images/vms/f"]).ok();
    let trace = scene.scratch.name("other.trace");
    let server = Server::start(["--trace", &trace, &scene.scratch.name("f.qcow2")]);
    server.client("f").read(12 << 20, 8 << 20).expect("a read");
    server.stop();
    scene.run(&["pack", "-q", "other.trace", NAME]).ok();
    let all = scene.packs();
    assert_eq!((first.len(), all.len()), (3, 4), "{all:?}");
    for (key, bytes) in [
        ("/images/vms/packs/notes", &b"mine"[..]),
        ("/images/vms/notes.start", b"mine"),
        ("/images/vms/large.start", &vec![b'x'; 2 * MIB]),
    ] {
        scene.store.put(key, bytes);
    }
    let unused = scene.prune(&["--remove", "--force", "--unused-for", "0s"]);
    assert_eq!((&unused["unused"], &unused["packs"]), (&json!([]), &4.into()), "{unused}");
    // One that a later build has made may name any of them.
    scene.store.put("/images/vms/f.start", br#"{"format":"cowhand-start-list","version":2}"#);
    assert_eq!(scene.prune(&["--unused-for", "0s"])["unused"], json!([]));
    scene.store.put("/images/vms/f.start", &list);
    // The fork goes, with its list and the packs of that.
    let keys = scene.store.keys("images");
    keys.iter().filter(|key| key.starts_with("vms/f") && key.ends_with(".json")).for_each(|key| {
        scene.store.delete(&format!("/images/{key}"));
    });
    let young = scene.prune(&["--remove"]);
    assert_eq!((&young["unused"], scene.packs()), (&json!([]), all.clone()), "{young}");
    let gone = scene.prune(&["--remove", "--force", "--unused-for", "0s"]);
    let names: Vec<&str> =
        gone["unused"].as_array().expect("a list").iter().filter_map(|one| one["name"].as_str()).collect();
    let is_gone = |key: &str| names.contains(&&*key.replacen("/images/", "s3://images/", 1));
    assert!(is_gone("/images/vms/f.start") && first.iter().all(|pack| is_gone(pack)), "{names:?}");
    assert_eq!(scene.packs(), all.difference(&first).cloned().collect());
    for key in [
        "/images/vms/packs/notes",
        "/images/vms/notes.start",
        "/images/vms/large.start",
        "/images/vms/d.start",
    ] {
        assert!(scene.store.get(key).is_some(), "{key}");
    }
    scene.assert_reads_as(NAME, &scene.disk());
}

/// What is being packed is announced: packs that no list names yet stay, and a start list never leads to packs that are removed.
#[test]
fn while_chunks_are_packed_nothing_is_removed_and_what_was_interrupted_is_done_by_the_next() {
    let scene = Scene::new();
    scene.start(&["--trace", &scene.scratch.name("start.trace")], NAME, &scene.disk());
    let words = ["pack", "start.trace", NAME];
    scene.way.plan(&[("PUT /images/vms/d.start", StoreFault::Silence); 20]);
    let outcome = scene.run(&words).interrupted_when(|| {
        scene.way.wait_for("PUT /images/vms/d.start");
        let prune = scene.store.below(cowhand(["prune", "--remove", "--unused-for", "1h", FOLDER]));
        let refused = prune.fails();
        assert!(refused.contains("is being pushed"), "{refused}");
    });
    assert!(!outcome.status.success() && outcome.stderr.contains("interrupted"), "{outcome}");
    assert_eq!((scene.packs().len(), scene.store.get("/images/vms/d.start")), (3, None));
    assert!(scene.store.keys("images").iter().all(|key| !key.contains("pushing")));
    scene.way.plan(&[]);
    let packed = scene.pack_again();
    assert_eq!((&packed["uploaded"], &packed["changed"]), (&0.into(), &true.into()), "{packed}");
    // Requests and answers that are lost.
    scene.store.delete("/images/vms/d.start");
    scene.packs().iter().for_each(|pack| scene.store.delete(pack));
    scene.way.plan(&[
        ("GET /images/vms/chunks/", StoreFault::Status(503)),
        ("PUT /images/vms/packs/", StoreFault::Reset),
        ("PUT /images/vms/packs/", StoreFault::LostAnswer),
        ("PUT /images/vms/d.start", StoreFault::LostAnswer),
    ]);
    assert_eq!(scene.pack_again()["uploaded"], 3);
    assert_eq!(scene.way.left(), []);
    let taken = scene.start_in_turn(&[], NAME, &scene.disk(), &IN_TURN);
    assert_eq!((taken.count("/packs/"), taken.count("/chunks/")), (3, 2), "{:#?}", taken.requests);
    scene.store.put("/images/vms/removing", b"");
    let refused = scene.run(&words).fails();
    assert!(refused.contains("being removed"), "{refused}");
}

/// Rounds of kills.
const KILL_ROUNDS: u64 = 8;

/// Kill -9 at any moment: the list is that from before or the new one, and the packs that it names are whole.
#[test]
fn a_pack_that_is_killed_leaves_a_list_whose_packs_are_there() {
    let scene = Scene::new();
    scene.pack();
    let trace = scene.scratch.name("other.trace");
    let server = Server::start(["--trace", &trace, &scene.scratch.name("d.qcow2")]);
    server.client("d").read(7 << 20, 16 << 20).expect("a read");
    server.stop();
    let (mut random, mut killed) = (Random::of_name("kills"), 0);
    for round in 0..KILL_ROUNDS {
        let trace = if round % 2 == 0 { "other.trace" } else { "start.trace" };
        // The first one is killed at once: no machine is so fast that it ends before.
        let delay = Duration::from_micros(if round == 0 { 0 } else { random.below(400_000) });
        killed += u64::from(scene.run(&["pack", trace, NAME]).killed_after(delay));
        let list = scene.list();
        for pack in list["packs"].as_array().expect("packs") {
            let there = scene.store.get(&format!("/images/vms/packs/{}", name_of(pack))).expect("a pack");
            let chunks = pack["chunks"].as_array().expect("chunks").iter();
            let bytes: u64 = chunks.map(|chunk| chunk["bytes"].as_u64().expect("a number")).sum();
            assert_eq!(there.len() as u64, bytes, "round {round}");
        }
    }
    assert!(killed > 0, "none was killed");
    scene.pack_again();
    // What was killed counts as a push that still runs, for as long as the user says.
    scene.run(&["prune", "-q", "--remove", "--force", "--unused-for", "0s", FOLDER]).ok();
    assert_eq!(scene.packs().len(), 3, "what no list names is gone");
    let taken = scene.start_in_turn(&[], NAME, &scene.disk(), &IN_TURN);
    assert_eq!((taken.count("/packs/"), taken.count("/chunks/")), (3, 2), "{:#?}", taken.requests);
}

#[test]
fn chunks_of_an_encrypted_image_are_packed_without_its_key_and_read_with_it() {
    let key = ["--object", "secret,id=k,file=vm.key", "--encrypt-key-secret", "k"];
    let scene = Scene::published(&key);
    let trace = scene.scratch.name("start.trace");
    let secret = ["--object".to_owned(), format!("secret,id=k,file={}", scene.scratch.name("vm.key"))];
    let secret = secret.each_ref().map(String::as_str);
    scene.start(&[&secret[..], &["--trace", &trace]].concat(), NAME, &scene.disk());
    assert_eq!(scene.pack_again()["chunks"], WITH_DATA);
    // What is in packs is what is at the store already.
    let stored = scene.store.keys("images").into_iter().filter(|key| key.contains("/chunks/"));
    let stored: Vec<Vec<u8>> =
        stored.map(|key| scene.store.get(&format!("/images/{key}")).unwrap()).collect();
    let packs = scene.packs().into_iter().map(|pack| scene.store.get(&pack).unwrap()).collect::<Vec<_>>();
    let is_packed =
        |chunk: &&Vec<u8>| packs.iter().any(|pack| pack.windows(64).any(|part| part == &chunk[..64]));
    assert_eq!(stored.iter().filter(is_packed).count(), WITH_DATA);
    let taken = scene.start_in_turn(&secret, NAME, &scene.disk(), &IN_TURN);
    assert_eq!((taken.count("/packs/"), taken.count("/chunks/")), (3, 2), "{:#?}", taken.requests);
}

/// A disk whose chunks were lost would be found whole, as long as packs had copies of them.
#[test]
fn tools_that_read_the_whole_disk_read_each_chunk_by_itself() {
    let scene = Scene::new();
    scene.pack();
    let list = scene.list();
    let chunk = list.pointer("/packs/0/chunks/3/name").and_then(Value::as_str).expect("a name");
    drop(scene.way.requests());
    scene.run(&["verify", &format!("chunked:{NAME}")]).ok();
    let requests = scene.way.requests();
    assert!(
        !requests.iter().any(|line| line.contains("/packs/") || line.contains(".start")),
        "{requests:#?}"
    );
    scene.store.delete(&format!("/images/vms/chunks/{}/{chunk}", &chunk[..2]));
    for words in [
        &["verify", &format!("chunked:{NAME}")][..],
        &["pull", NAME, "back.raw"],
        &["pack", "start.trace", NAME],
    ] {
        let refused = scene.run(words).fails();
        assert!(refused.contains(chunk) && refused.contains("missing"), "{refused}");
    }
}

/// A second start fetched what was on this machine already.
#[test]
fn a_start_that_has_all_in_its_cache_asks_for_no_list_and_no_pack() {
    let scene = Scene::new();
    scene.pack();
    let cache = scene.scratch.name("cache");
    let base = format!("driver=raw,file.driver=chunked,file.url={NAME},file.cache-file={cache}");
    let top = scene.scratch.name("r.qcow2");
    for expected in [(1, 3), (0, 0)] {
        drop(scene.way.requests());
        let words = ["--overlay", &top, &base].map(str::to_owned);
        let (server, qmp) = scene.serve_with(format!("http://{}", scene.way.address()), words);
        drop(qmp);
        let packs = if expected.1 > 0 { &IN_TURN[..] } else { &[] };
        let requests = scene.read_start(&server, &scene.disk(), packs);
        server.stop();
        std::fs::remove_file(&top).expect("the overlay");
        let requests = [requests, scene.way.requests()].concat();
        let count = |mark: &str| requests.iter().filter(|line| line.contains(mark)).count();
        assert_eq!((count(".start"), count("/packs/")), expected, "{requests:#?}");
    }
}

#[test]
fn what_cannot_be_packed_is_refused_in_plain_words() {
    let scene = Scene::new();
    scene.pack();
    scene.scratch.write("letters", b"letters of somebody");
    let (one, other, trace) =
        (scene.scratch.name("one.qcow2"), scene.scratch.name("other.qcow2"), scene.scratch.name("two.trace"));
    [&one, &other]
        .iter()
        .for_each(|disk| drop(Run::new("qemu-img").args(["create", "-q", "-f", "qcow2", disk, "8M"]).ok()));
    let server = Server::start(["--trace", &trace, &one, &other]);
    server.client("other").read(0, 4096).expect("a read");
    server.stop();
    let hollow = "s3://images/vms/hollow";
    scene.run(&["push", "-q", "one.qcow2", hollow]).ok();
    for (words, says) in [
        (&["none.trace", NAME][..], "cannot read the trace none.trace"),
        (&["letters", NAME], "not a trace of cowhand serve --trace"),
        (&["two.trace", NAME], "is of several disks; it has: "),
        (&["--drive", "third.qcow2", "two.trace", NAME], "is of no disk third.qcow2"),
        (&["start.trace", "s3://images/vms/none"], "none.json is not there"),
        (&["start.trace", "https://mirror.example/vms/d"], "allowed: s3://BUCKET/FOLDER/NAME"),
        (&["start.trace", hollow], "there is nothing to pack"),
    ] {
        let refused = scene.run(&[&["pack"], words].concat()).fails();
        assert!(refused.contains(says), "{words:?}: {refused}");
    }
    // An object of the user's, a damaged list, and one of a later build.
    let good = scene.store.get("/images/vms/d.start").expect("a list");
    for (there, says) in [
        (&b"mine"[..], "d.start: it is no start list"),
        (&good[..good.len() / 2], "hint: a start list makes starts faster and nothing else"),
        (br#"{"format":"cowhand-start-list","version":2}"#, "version is 2; allowed: 1"),
    ] {
        scene.store.put("/images/vms/d.start", there);
        let refused = scene.run(&["pack", "start.trace", NAME]).fails();
        assert!(refused.contains(says), "{refused}");
        assert_eq!(scene.store.get("/images/vms/d.start").as_deref(), Some(there));
    }
    scene.store.put("/images/vms/d.start", &good);
    let packed = scene.run(&["pack", "--output", "json", "--drive", "other.qcow2", "two.trace", NAME]).json();
    assert_eq!((&packed["chunks"], &packed["uploaded"]), (&1.into(), &1.into()), "{packed}");
    assert!(scene.store.keys("images").iter().all(|key| !key.contains("pushing")));
}
