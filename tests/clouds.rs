//! Published disks in the stores of three clouds, with credentials that end while they are open.

use black_box::peer::qemu_io_ok;
use black_box::random::Random;
use black_box::server::Start;
use black_box::{Cloud, FakeCloud, Run, Scratch, cowhand};

const MIB: usize = 1 << 20;
const CLOUDS: [(Cloud, &str); 3] = [(Cloud::Amazon, "s3"), (Cloud::Google, "gs"), (Cloud::Azure, "az")];

/// A disk with a checkpoint `one`, and an empty cloud whose credentials end within half a minute.
struct Scene {
    scratch: Scratch,
    cloud: FakeCloud,
    noise: Vec<u8>,
}

impl Scene {
    fn new(cloud: Cloud) -> Self {
        let scratch = Scratch::new();
        let noise = Random::of_name("clouds").bytes(6 * MIB);
        scratch.write("noise.raw", &noise);
        let scene = Self { scratch, cloud: FakeCloud::start(cloud, 24), noise };
        scene.run(&["convert", "-q", "-f", "raw", "-O", "qcow2", "noise.raw", "d.qcow2"]).ok();
        scene.run(&["checkpoint", "-q", "d.qcow2", "one"]).ok();
        scene
    }

    fn run(&self, words: &[&str]) -> Run {
        self.cloud.below(cowhand(words).current_dir(self.scratch.path()))
    }

    fn write(&self, command: &str) {
        qemu_io_ok(&["-f", "qcow2"], &self.scratch.name("d.qcow2"), &[command]);
    }
}

#[test]
fn a_checkpoint_is_published_restored_and_served_in_each_cloud() {
    for (cloud, scheme) in CLOUDS {
        let scene = Scene::new(cloud);
        let name = format!("{scheme}://images/vms/d");
        scene.run(&["publish", "-q", "d.qcow2@one", &name]).ok();
        scene.write("write -P 7 1M 64k");
        scene.run(&["checkpoint", "-q", "d.qcow2", "two"]).ok();
        let report = scene.run(&["publish", "--output", "json", "d.qcow2@two", &name]).json();
        assert_eq!(
            (&report["read-bytes"], &report["deltas"]),
            (&MIB.into(), &1.into()),
            "{cloud:?}: {report}"
        );
        scene.run(&["restore", "-q", "--full", &name, "two.qcow2"]).ok();
        scene.run(&["compare", "-f", "qcow2", "-F", "qcow2", "d.qcow2", "two.qcow2"]).ok();
        scene.run(&["restore", "-q", "--full", "--at", "one", &name, "back.qcow2"]).ok();
        scene.run(&["compare", "-f", "raw", "-F", "qcow2", "noise.raw", "back.qcow2"]).ok();
        // Requests of one upload were signed with credentials that were renewed meanwhile.
        let requests = scene.cloud.requests();
        assert!(requests.iter().any(|(line, _)| line.starts_with("PUT ") && line.contains("/chunks/")));
        let trace = scene.scratch.name("start.trace");
        let start = Start::new(["--trace", &trace, "--overlay"]).arg(scene.scratch.name("top.qcow2"));
        let start = start.env("HOME", "/nonexistent");
        let start =
            scene.cloud.variables().into_iter().fold(start, |start, (name, value)| start.env(name, value));
        let server =
            start.arg(format!("chunked:{name}")).listen().unwrap_or_else(|error| panic!("{}", error.0));
        scene.cloud.requests();
        let mut client = server.client("top");
        for at in [0, 3 * MIB] {
            assert!(client.read(at as u64, MIB as u32).expect("bytes") == scene.noise[at..at + MIB]);
        }
        drop(client);
        // In its sandbox it has fetched new ones for each.
        let signed = scene.cloud.requests().into_iter().map(|(_, by)| by);
        let fetched: Vec<String> = signed.filter(|by| !by.is_empty()).collect();
        assert!(fetched.len() >= 2 && fetched.first() != fetched.last(), "{cloud:?}: {fetched:?}");
        server.stop();
        let packed = scene.run(&["pack", "--output", "json", "start.trace", &name]).json();
        assert_eq!((&packed["chunks"], &packed["uploaded"]), (&2.into(), &1.into()), "{cloud:?}: {packed}");
        let prune = ["prune", "--output", "json", "--unused-for", "0s", &format!("{scheme}://images/vms")];
        let unused = scene.run(&prune).json();
        let none = (&serde_json::json!([]), &1.into());
        assert_eq!((&unused["unused"], &unused["packs"]), none, "{cloud:?}: {unused}");
    }
}

#[test]
fn an_image_is_uploaded_as_one_object_in_each_cloud_and_another_one_is_refused() {
    for (cloud, scheme) in CLOUDS {
        let scene = Scene::new(cloud);
        scene.scratch.write("disk.raw", &Random::of_name("uploads of clouds").bytes(20 * MIB));
        let name = format!("{scheme}://images/disk.raw");
        let convert = ["convert", "-q", "-f", "raw", "-O", "raw", "disk.raw", &name];
        scene.run(&convert).ok();
        scene.run(&["compare", "-f", "raw", "-F", "raw", "disk.raw", &name]).ok();
        let refused = scene.run(&convert).fails();
        let said = format!("cannot upload {name}\n  because: there is an object already");
        assert!(refused.contains(&said), "{refused}");
        scene.run(&[&convert[..7], &["--force", &name]].concat()).ok();
        assert_eq!(scene.cloud.parts(), 0);
    }
}

#[test]
fn two_published_checkpoints_are_compared_by_the_names_of_their_chunks() {
    let scene = Scene::new(Cloud::Google);
    let name = "gs://images/vms/d";
    scene.run(&["publish", "-q", "d.qcow2@one", name]).ok();
    scene.write("write -P 7 1M 64k");
    scene.write("write -z 4M 2M");
    scene.run(&["checkpoint", "-q", "d.qcow2", "two"]).ok();
    scene.run(&["publish", "-q", "d.qcow2@two", name]).ok();
    scene.cloud.requests();
    let (one, two) = (format!("{name}@one"), format!("chunked:{name}@two"));
    let found = scene.run(&["diff", "--output", "json", &one, &two]).json();
    let expected = serde_json::json!([
        { "start": MIB, "length": MIB, "a": "data", "b": "data" },
        { "start": 4 * MIB, "length": 2 * MIB, "a": "data", "b": "zero" },
    ]);
    assert_eq!(found, expected);
    let requests = scene.cloud.requests();
    let tables = requests.iter().filter(|(line, _)| line.contains("/chunks/")).count();
    assert_eq!(tables, 2, "{requests:?}");
    assert_eq!(scene.run(&["diff", "--output", "json", name, &two]).json(), serde_json::json!([]));
    let refused = scene.run(&["diff", &one, "d.qcow2"]).fails();
    assert!(refused.contains("only one of the two is a published disk"), "{refused}");
    let refused = scene.run(&["diff", &format!("{name}@three"), &two]).fails();
    assert!(refused.contains("has no checkpoint \"three\""), "{refused}");
}

/// What has no account, no credentials or no shape is refused before anything is sent.
#[test]
fn a_store_that_cannot_be_meant_is_refused_by_what_is_wrong() {
    let scratch = Scratch::new();
    scratch.write("disk.raw", &[7; 4096]);
    scratch.write("key", b"hush");
    let run = |words: &[&str]| {
        let run = cowhand(words).current_dir(scratch.path()).env("HOME", "/nonexistent");
        run.env("AWS_EC2_METADATA_DISABLED", "true")
    };
    let push = |name: &str| run(&["push", "-f", "raw", "disk.raw", name]).fails();
    for (name, said) in [
        ("az://images/d", "no storage account is named: give AZURE_STORAGE_ACCOUNT_NAME, or the endpoint"),
        ("gs://im/d", "a bucket of 3 to 63"),
        ("gs://images/", "a key of 1 to"),
        ("az:images/d", "s3://BUCKET/KEY, gs://BUCKET/KEY or az://CONTAINER/KEY"),
        ("http://h/d", "allowed: s3://BUCKET/FOLDER/NAME, or the same with gs or az"),
    ] {
        let refused = push(name);
        assert!(refused.contains(said), "{name}: {refused}");
    }
    let with_secret = |driver: &str| {
        let drive = format!(
            "driver=raw,read-only=on,file.driver={driver},file.bucket=images,file.key=d,file.key-secret=k"
        );
        let info = run(&["info", "--object", "secret,id=k,file=key", "--image-opts", &drive]);
        info.env("AZURE_STORAGE_ACCOUNT_NAME", "me").fails()
    };
    for (driver, said) in [
        ("gs", "the secret is no file of credentials of Google's, in JSON"),
        ("az", "the secret is neither ACCOUNT:KEY nor a SAS token"),
    ] {
        let refused = with_secret(driver);
        assert!(refused.contains(said) && !refused.contains("hush"), "{refused}");
    }
}
