//! Passwords that are asked for on a terminal.

use std::fs;
use std::path::Path;

use crate::peer::{Bench, Ran};

/// Runs a shell script on a terminal of its own. Each answer is typed when a question stands there. What the terminal showed is the output.
const ON_A_TERMINAL: &str = r"
import os, pty, select, sys
script, answers = sys.argv[1], sys.argv[2:]
pid, master = pty.fork()
if pid == 0:
    os.execvp('sh', ['sh', '-c', script])
shown, seen = b'', 0
while True:
    if not select.select([master], [], [], 60)[0]:
        os.kill(pid, 9)
        sys.exit('it waits: ' + repr(shown))
    try:
        more = os.read(master, 4096)
    except OSError:
        more = b''
    if not more:
        break
    shown += more
    asked = shown.find(b'Password of ', seen)
    if asked >= 0 and shown.endswith(b': ') and answers:
        seen = len(shown)
        os.write(master, answers.pop(0).encode())
sys.stdout.write(shown.decode().replace('\r\n', '\n'))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

/// Runs `script`, in which `cowhand` is the program, and types the answers.
fn on_a_terminal(bench: &Bench, script: &str, answers: &[&str]) -> Ran {
    let script = format!("cowhand() {{ {} \"$@\"; }}; {script}", env!("CARGO_BIN_EXE_cowhand"));
    bench.run(Path::new("python3"), &[&["-c", ON_A_TERMINAL, &script], answers].concat())
}

/// `top.qcow2` over `base.qcow2`, with a password each.
fn chain() -> Bench {
    let bench = Bench::new();
    for (name, password) in [("base", "lower"), ("top", "upper")] {
        fs::write(bench.path(name), password).unwrap();
        let object = format!("secret,id=s,file={name}");
        let image = format!("{name}.qcow2");
        let over: &[&str] = if name == "top" { &["-u", "-b", "base.qcow2", "-F", "qcow2"] } else { &[] };
        let create = [
            "create",
            "-q",
            "--object",
            &object,
            "-o",
            "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
        ];
        let ran = bench.cowhand(&[&create, over, &[&image, "1M"]].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    bench
}

#[test]
fn each_layer_is_asked_for_once_and_nothing_that_is_typed_is_shown() {
    let bench = chain();
    // Opened three times: to be copied, and both to be compared. Keys that rub out are keys.
    let script = "cowhand convert --verify -O raw top.qcow2 out.raw; code=$?; stty -a | grep -o '[-]*echo '; exit $code";
    let answers = |password: &str| match password {
        "upper" => "wrong\u{15}up\u{fc}\u{7f}per\r".to_owned(),
        password => format!("{password}\n"),
    };
    let (first, second) = (answers("lower"), answers("upper"));
    let ran = on_a_terminal(&bench, script, &[&first, &second]);
    let ran = match ran.out.starts_with("Password of top.qcow2") {
        true => on_a_terminal(&bench, script, &[&second, &first]),
        false => ran,
    };
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert_eq!(ran.out.matches("Password of ").count(), 2, "{}", ran.out);
    for image in ["Password of top.qcow2: \n", "/base.qcow2: \n"] {
        assert_eq!(ran.out.matches(image).count(), 1, "{}", ran.out);
    }
    assert!(!ran.out.contains("upper") && !ran.out.contains("lower"), "{}", ran.out);
    assert!(ran.out.ends_with("\necho \n"), "{}", ran.out);
    assert_eq!(fs::read(bench.path("out.raw")).unwrap(), vec![0; 1 << 20]);
}

#[test]
fn a_wrong_password_and_none_at_all_end_it() {
    let bench = chain();
    let ran = on_a_terminal(&bench, "cowhand map base.qcow2", &["wrong\n"]);
    assert!(ran.code == 1 && ran.out.contains("the password opens no key slot"), "{}", ran.out);
    let ran = on_a_terminal(&bench, "cowhand map base.qcow2", &["\u{4}"]);
    assert!(ran.code == 1 && ran.out.contains("no password was given for base.qcow2"), "{}", ran.out);
}

/// The terminal once stayed without echo: after Ctrl-C at a question, nothing that was typed could be seen.
#[test]
fn a_terminal_is_as_it_was_after_ctrl_c() {
    let bench = chain();
    let script =
        "cowhand map base.qcow2; echo code=$?; stty -a | grep -o '[-]*echo '; stty -a | grep -o '[-]*icanon'";
    let ran = on_a_terminal(&bench, script, &["secr\u{3}"]);
    assert_eq!(ran.out, "Password of base.qcow2: \ncode=130\necho \nicanon\n");
}

#[test]
fn nobody_is_asked_without_a_terminal_or_under_qemus_names() {
    let bench = chain();
    let plain = "its password is needed: give encrypt.key-secret=ID";
    let ran = on_a_terminal(&bench, "cowhand map base.qcow2 < /dev/null", &["lower\n"]);
    assert!(ran.code == 1 && ran.out.contains(plain) && !ran.out.contains("Password of"), "{}", ran.out);
    let ran = bench.cowhand(&["map", "base.qcow2"]);
    assert!(ran.code == 1 && ran.err.contains(plain), "{}", ran.err);
    let script = "cowhand compat install . && ./qemu-img map base.qcow2";
    let ran = on_a_terminal(&bench, script, &["lower\n"]);
    assert!(ran.code == 1 && ran.out.contains(plain) && !ran.out.contains("Password of"), "{}", ran.out);
}
