//! Headers, keys and sectors of qemu-img and cryptsetup, opened; ours, opened by them.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use luks::layout::{
    Algorithm, Cipher, Hash, Header, Iv, Mode, NewHeader, NewSlot, SECTOR_BYTES, Secret, SectorCipher,
};

const PASSWORD: &str = "pass, word";

/// What QEMU's tools say, now and then, when they make a key: the kernel's count of CPU time went back. They are to try again.
const NO_CPU_TIME: &str = "Unable to get accurate CPU usage";

/// Runs a program with `input`; its output.
fn run(program: &str, arguments: &[&str], input: &str) -> Vec<u8> {
    loop {
        if let Some(output) = try_to_run(program, arguments, input) {
            return output;
        }
    }
}

fn try_to_run(program: &str, arguments: &[&str], input: &str) -> Option<Vec<u8>> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains(NO_CPU_TIME) {
        return None;
    }
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    Some(output.stdout)
}

fn secret() -> Secret {
    Secret::new(PASSWORD.as_bytes().to_vec())
}

fn qemu_secret() -> String {
    format!("secret,id=s,data={}", PASSWORD.replace(',', ",,"))
}

/// The key that the password gives, tried on every slot.
fn open(file: &[u8]) -> (Header, Secret) {
    let header = Header::decode(file, file.len() as u64).unwrap();
    for slot in header.slots.iter().filter(|slot| slot.active) {
        let start = slot.material_sector as usize * 512;
        let material = Secret::new(file[start..start + header.material_bytes(slot)].to_vec());
        if let Some(key) = header.open_slot(slot, &secret(), material).unwrap() {
            return (header, key);
        }
    }
    panic!("no slot of {header:?} is opened");
}

/// What the disk in `file` reads as.
fn deciphered(file: &[u8]) -> (Header, Vec<u8>) {
    let (header, key) = open(file);
    let mut disk = file[header.payload_sector as usize * 512..].to_vec();
    SectorCipher::new(header.cipher, &key).unwrap().decipher(0, &mut disk);
    (header, disk)
}

/// A disk whose every sector is another.
fn content() -> Vec<u8> {
    (0..256 * SECTOR_BYTES).map(|at| (at / 512 + at % 7) as u8).collect()
}

/// Ciphers that QEMU has of one algorithm.
fn ciphers(algorithm: Algorithm) -> Vec<Cipher> {
    let modes = Mode::NAMED.into_iter();
    let each =
        modes.flat_map(|(_, mode)| Iv::NAMED.into_iter().map(move |(_, iv)| Cipher { algorithm, mode, iv }));
    each.collect()
}

fn convert(from: &Path, to: &Path, target: &[&str]) {
    let (from, to, secret) = (from.to_str().unwrap(), to.to_str().unwrap(), qemu_secret());
    let start = ["convert", "-n", "--object", &secret, "-f", "raw"];
    let arguments = [&start[..], target, &[from, to]].concat();
    run("qemu-img", &arguments, "");
}

/// QEMU's key slots take no AES-192: in CBC mode it ends with an assertion, in XTS mode it has none. It takes a second for each disk.
#[test]
fn qemus_disks_are_read_whatever_their_cipher_of_128_bits() {
    qemus_disks_are_read(Algorithm::Aes128);
}

#[test]
fn qemus_disks_are_read_whatever_their_cipher_of_256_bits() {
    qemus_disks_are_read(Algorithm::Aes256);
}

fn qemus_disks_are_read(algorithm: Algorithm) {
    let scratch = tempfile::tempdir().unwrap();
    let (raw, luks) = (scratch.path().join("raw"), scratch.path().join("luks"));
    fs::write(&raw, content()).unwrap();
    for (cipher, hash) in ciphers(algorithm).into_iter().zip(Hash::ALL.into_iter().cycle()) {
        let iv_hash = cipher.iv.hash_name().map_or(String::new(), |hash| format!(",ivgen-hash-alg={hash}"));
        let options = format!(
            "key-secret=s,iter-time=10,cipher-alg={},cipher-mode={},ivgen-alg={}{iv_hash},hash-alg={}",
            cipher.algorithm.name(),
            cipher.mode.name(),
            cipher.iv.name(),
            hash.name()
        );
        let (raw, luks) = (raw.to_str().unwrap(), luks.to_str().unwrap());
        run(
            "qemu-img",
            &["convert", "--object", &qemu_secret(), "-f", "raw", "-O", "luks", "-o", &options, raw, luks],
            "",
        );
        let (header, disk) = deciphered(&fs::read(luks).unwrap());
        assert_eq!((header.cipher, header.hash), (cipher, hash));
        assert!(disk == content(), "{cipher}");
    }
}

#[test]
fn cryptsetups_keys_are_found_in_any_slot() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("luks");
    for (cipher, key_bits, hash) in
        [("aes-xts-plain64", "512", "sha512"), ("aes-cbc-essiv:sha256", "192", "sha1")]
    {
        fs::write(&file, vec![0; 8 << 20]).unwrap();
        let name = file.to_str().unwrap();
        let format = [
            "luksFormat",
            "--type",
            "luks1",
            "-q",
            "--pbkdf-force-iterations",
            "1000",
            "--key-size",
            key_bits,
        ];
        run("cryptsetup", &[&format[..], &["-c", cipher, "-h", hash, name, "-"]].concat(), "another");
        let other = scratch.path().join("other");
        fs::write(&other, "another").unwrap();
        let add = ["luksAddKey", "-q", "--pbkdf-force-iterations", "1000", "--key-slot", "5", "--key-file"];
        run("cryptsetup", &[&add[..], &[other.to_str().unwrap(), name, "-"]].concat(), PASSWORD);
        let (header, key) = open(&fs::read(&file).unwrap());
        assert!(header.slots[0].active && header.slots[5].active);
        let volume_key = scratch.path().join("key");
        let dump = ["luksDump", "-q", "--dump-volume-key", "--volume-key-file", volume_key.to_str().unwrap()];
        run("cryptsetup", &[&dump[..], &["--key-file", other.to_str().unwrap(), name]].concat(), "");
        assert_eq!(key.bytes(), fs::read(&volume_key).unwrap());
        fs::remove_file(volume_key).unwrap();
    }
}

#[test]
fn qemu_and_cryptsetup_open_what_is_made_here() {
    let scratch = tempfile::tempdir().unwrap();
    let (raw, luks) = (scratch.path().join("raw"), scratch.path().join("luks"));
    fs::write(&raw, content()).unwrap();
    let aes_192 = Cipher { algorithm: Algorithm::Aes192, mode: Mode::Cbc, iv: Iv::Plain64 };
    let ciphers = [Algorithm::Aes128, Algorithm::Aes256].into_iter().flat_map(ciphers).chain([aes_192]);
    for (cipher, hash) in ciphers.zip(Hash::ALL.into_iter().cycle()) {
        let key = Secret::new((0..cipher.key_bytes()).map(|at| (at * 3 + 1) as u8).collect());
        let new = NewHeader {
            cipher,
            hash,
            key: &key,
            digest_salt: [7; 32],
            digest_iterations: 1000,
            uuid: [9; 16],
        };
        let mut header = Header::new(&new).unwrap();
        let random = (0..header.material_bytes(&header.slots[6])).map(|at| (at * at / 5) as u8).collect();
        let new = NewSlot { password: &secret(), iterations: 1200, salt: [8; 32] };
        let material = header.fill_slot(6, &key, &new, Secret::new(random)).unwrap();
        let mut file = vec![0; header.payload_sector as usize * 512 + content().len()];
        file[..592].copy_from_slice(&header.encode());
        let start = header.slots[6].material_sector as usize * 512;
        file[start..start + material.bytes().len()].copy_from_slice(material.bytes());
        fs::write(&luks, &file).unwrap();
        let name = luks.to_str().unwrap();
        run("cryptsetup", &["open", "--test-passphrase", "--key-file", "-", name], PASSWORD);
        if cipher == aes_192 {
            continue;
        }
        let target = format!("driver=luks,key-secret=s,file.filename={name}");
        convert(&raw, Path::new(&target), &["--target-image-opts"]);
        assert!(deciphered(&fs::read(&luks).unwrap()).1 == content(), "{cipher}");
    }
}
