//! Names in images are foreign bytes: no tool sends a terminal what that would obey.

use crate::peer::Bench;

/// A title, a colour, an order of writing, an escape of one byte, the end of a line.
const NAME: &str = "a\u{1b}]0;x\u{7}\u{1b}[31m\u{202e}\u{2066}\u{9b}31m\u{2028}\u{7f}z";

/// Whether a terminal does something else with it than to show it, or to go on in the next line or column.
fn is_obeyed(c: char) -> bool {
    let is_control = c.is_control() && !matches!(c, '\n' | '\t');
    is_control
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[test]
fn no_tool_sends_a_terminal_what_it_would_obey() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "named.qcow2", "1M"]);
    bench.qemu("qemu-img", &["snapshot", "-q", "-c", NAME, "named.qcow2"]);
    bench.qemu("qemu-img", &["bitmap", "--add", "named.qcow2", NAME]);
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "over.qcow2", "1M"]);
    bench.qemu("qemu-img", &["rebase", "-q", "-u", "-F", "qcow2", "-b", NAME, "over.qcow2"]);
    let tools: [&[&str]; 22] = [
        &["info"],
        &["info", "--output", "json"],
        &["info", "--backing-chain"],
        &["check"],
        &["check", "--output", "json"],
        &["map"],
        &["map", "--output", "json"],
        &["show"],
        &["show", "--ascii"],
        &["show", "--output", "json"],
        &["snapshot", "-l"],
        &["snapshot", "-l", "--output", "json"],
        &["snapshot", "-d", NAME],
        &["snapshot", "-a", "none\u{202e}"],
        &["bitmap", "--remove", "none\u{9b}"],
        &["measure", "-O", "qcow2"],
        &["verify"],
        &["compact", "-n"],
        &["io", "-r", "-c", "map"],
        &["commit"],
        &["flatten"],
        &["amend", "-o", "compat=0.10"],
    ];
    let (mut shown, mut found) = (0, Vec::new());
    for image in ["named.qcow2", "over.qcow2"] {
        for words in tools {
            // A name of a bitmap or a snapshot that is asked for stands behind the image, or before it.
            let words: Vec<&str> = match words {
                ["bitmap", flag, name] => vec!["bitmap", *flag, image, *name],
                words => words.iter().copied().chain([image]).collect(),
            };
            let ran = bench.cowhand(&words);
            let said = ran.out + &ran.err;
            shown += usize::from(said.contains("\\u{202e}"));
            found.extend(said.contains(is_obeyed).then(|| format!("{words:?}: {said:?}")));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
    assert!(shown >= 8, "only {shown} tools showed a name: the others say nothing of it");
}
