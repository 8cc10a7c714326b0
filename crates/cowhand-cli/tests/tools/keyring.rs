//! A password in the kernel's keyring.

use std::fs;
use std::path::Path;

use crate::peer::{Bench, Ran};

/// Adds a key to the session's keyring, and runs a program with its number in the place of SERIAL.
const WITH_A_KEY: &str = r"
import ctypes, os, platform, sys
add_key = {'x86_64': 248, 'aarch64': 217}[platform.machine()]
payload = sys.argv[1].encode()
libc = ctypes.CDLL(None, use_errno=True)
SESSION = -3
key = libc.syscall(add_key, b'user', b'cowhand-test-%d' % os.getpid(), payload, len(payload), SESSION)
if key < 0:
    sys.exit('add_key: ' + os.strerror(ctypes.get_errno()))
words = [word.replace('SERIAL', str(key)) for word in sys.argv[2:]]
os.execvp(words[0], words)
";

fn with_a_key(bench: &Bench, payload: &str, words: &[&str]) -> Ran {
    bench.run(Path::new("python3"), &[&["-c", WITH_A_KEY, payload], words].concat())
}

#[test]
fn a_password_comes_from_the_kernels_keyring() {
    let bench = Bench::new();
    fs::write(bench.path("password"), "abc123").unwrap();
    let create = [
        "create",
        "-q",
        "--object",
        "secret,id=s,file=password",
        "-f",
        "luks",
        "-o",
        "key-secret=s,iter-time=10",
    ];
    let created = bench.cowhand(&[&create[..], &["disk.luks", "1M"]].concat());
    assert_eq!(created.code, 0, "{}", created.err);
    let cowhand = env!("CARGO_BIN_EXE_cowhand");
    let drive = "driver=luks,key-secret=s,file.filename=disk.luks";
    let map = |payload: &str, object: &str| {
        with_a_key(&bench, payload, &[cowhand, "map", "--object", object, "--image-opts", drive])
    };
    let opened = map("abc123", "secret_keyring,id=s,serial=SERIAL");
    assert_eq!(opened.code, 0, "{}", opened.err);
    let opened = map("YWJjMTIz", "secret_keyring,id=s,serial=SERIAL,format=base64");
    assert_eq!(opened.code, 0, "{}", opened.err);
    let words = [
        "qemu-io",
        "--object",
        "secret_keyring,id=s,serial=SERIAL",
        "-c",
        "read 0 512",
        "--image-opts",
        drive,
    ];
    let theirs = with_a_key(&bench, "abc123", &words);
    assert_eq!(theirs.code, 0, "{}", theirs.err);
    let table = [
        ("wrong", "secret_keyring,id=s,serial=SERIAL", "the password opens no key slot"),
        (
            "x",
            "secret_keyring,id=s,serial=2147483647",
            "from key 2147483647 of the kernel's keyrings: Required key not available",
        ),
        ("x", "secret_keyring,id=s,serial=0", "serial is no number of a key; allowed: 1 to 2147483647"),
        (
            "x",
            "secret_keyring,id=s",
            "needs data=TEXT or file=PATH, one of them (a secret_keyring: serial=NUMBER)",
        ),
        ("x", "secret_keyring,id=s,data=x", "unknown option \"data\"; allowed: id, serial, format"),
        ("x", "secret,id=s,serial=5", "unknown option \"serial\"; allowed: id, data, file, format"),
    ];
    for (payload, object, why) in table {
        let ran = map(payload, object);
        assert!(ran.code == 1 && ran.err.contains(why), "{object}: {}", ran.err);
    }
}
