//! The control socket against any client: framing, handshake, schemas, and options of disks.

use control::{Command, Session, Step};
use graph::drive::OptionTree;
use graph::options::DiskOptions;
use monitor::qmp::commands::{COMMANDS, EVENTS};
use serde_json::Value;

use crate::input::Input;

const HANDSHAKE: &[u8] = b"{\"execute\":\"qmp_capabilities\"}";

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.byte();
    let mut stream = if how & 4 == 4 { HANDSHAKE.to_vec() } else { Vec::new() };
    if how & 8 == 8 {
        commands(&mut input, &mut stream);
    }
    stream.extend_from_slice(input.rest());
    let said = talk(&stream, usize::MAX);
    // How the bytes are cut makes no difference.
    let piece = [1, 3, 64, 1000][usize::from(how & 3)];
    assert_eq!(said, talk(&stream, piece), "in pieces of {piece}");
}

/// Commands that are, with arguments from the input.
fn commands(input: &mut Input<'_>, stream: &mut Vec<u8>) {
    for _ in 0..input.byte() % 8 {
        let name = input.pick(COMMANDS).name;
        let len = usize::from(input.byte());
        let arguments = input.bytes(len);
        stream.extend_from_slice(b"{\"execute\":\"");
        stream.extend_from_slice(name.as_bytes());
        stream.extend_from_slice(b"\",\"arguments\":{");
        stream.extend_from_slice(arguments);
        stream.extend_from_slice(b"}}");
    }
}

/// Everything that was said and done.
fn talk(stream: &[u8], piece: usize) -> Vec<String> {
    let mut session = Session::new(COMMANDS, EVENTS);
    let (mut said, mut rest) = (Vec::new(), stream);
    while !rest.is_empty() {
        let offered = &rest[..piece.min(rest.len())];
        let (taken, step) = session.step(offered);
        assert!(taken > 0 && taken <= offered.len(), "took {taken} of {} bytes", offered.len());
        rest = &rest[taken..];
        match step {
            Step::Need => {}
            Step::Reply(line) => said.push(reply(&line)),
            Step::Execute(command) => said.push(execute(&command)),
            Step::Close(line) => {
                said.push(reply(&line));
                break;
            }
        }
    }
    said
}

/// One line, one object, an answer.
fn reply(line: &[u8]) -> String {
    let text = std::str::from_utf8(line).expect("a reply is UTF-8");
    let object = text.strip_suffix("\r\n").expect("a reply ends its line");
    assert!(!object.contains('\n'), "a reply is one line");
    let value: Value = serde_json::from_str(object).expect("a reply is JSON");
    assert!(value["return"].is_null() != value["error"].is_null(), "{object}");
    object.to_owned()
}

/// What the command's arguments come to, as far as nothing is opened.
fn execute(command: &Command) -> String {
    let spec = COMMANDS.iter().find(|spec| spec.name == command.name).expect("a command that there is");
    assert_eq!(spec.check(&command.arguments), Ok(()), "it was checked");
    let options = match command.name.as_str() {
        "blockdev-add" => OptionTree::of_json(command.arguments.clone()).ok(),
        "x-blockdev-set" => {
            let mut tree = OptionTree::of_path("disk");
            let text = command.arguments["options"].as_str().unwrap_or_default();
            tree.replace_all(text.as_ref()).ok().map(|()| tree)
        }
        _ => None,
    };
    let options = options.map(DiskOptions::of_tree);
    format!("{} {options:?}", command.name)
}
