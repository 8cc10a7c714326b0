//! Offsets are values that cannot be taken for each other: where the guest's disk and the file stand side by side, a function does not take
//! both as bare numbers, and few take two of any kind.

use super::sizes::without_tests;
use super::tree::Tree;

/// The room where guest and file stand side by side.
const ROOM: &str = "crates/qcow2/src/";

/// Functions there that take two bare offsets or lengths, at most. Those of the block contract are among them.
const PAIRS_MAX: usize = 40;

/// What offsets and lengths are called.
const OFFSETS: [&str; 9] = ["offset", "len", "start", "end", "guest", "host", "at", "from", "to"];

/// Of them, places in the guest's disk and places in the file.
const SIDES: [&str; 2] = ["guest", "host"];

pub fn complaints(tree: &Tree) -> Vec<String> {
    let files = tree.ending(".rs").filter(|(path, _)| path.starts_with(ROOM) && !is_test(path));
    let pairs: Vec<(&str, &str, Vec<&str>)> = files.flat_map(|(path, text)| pairs(path, text)).collect();
    let mixed = pairs.iter().filter(|(.., names)| SIDES.iter().all(|side| names.contains(side)));
    let mut complaints: Vec<String> = mixed
        .map(|(path, function, _)| {
            format!("{path}: {function} takes an offset of the guest and one of the file as bare u64")
        })
        .collect();
    if pairs.len() > PAIRS_MAX {
        let all: Vec<_> = pairs.iter().map(|(path, function, _)| format!("{path} {function}")).collect();
        complaints.push(format!(
            "{ROOM}: {} functions take two or more bare offsets or lengths, of at most {PAIRS_MAX}; GuestRange, HostOffset and Range are \
             for them: {}",
            pairs.len(),
            all.join(", ")
        ));
    }
    complaints
}

fn is_test(path: &str) -> bool {
    path.ends_with("tests.rs") || path.contains("/interleavings/")
}

/// The functions of a file with two or more bare offsets or lengths, each with their names.
fn pairs<'a>(path: &'a str, text: &'a str) -> impl Iterator<Item = (&'a str, &'a str, Vec<&'a str>)> {
    let functions = without_tests(text).split("fn ").skip(1);
    functions.filter_map(move |function| {
        let (name, rest) = function.split_once('(')?;
        let name = name.split('<').next()?;
        let is_name =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let bare: Vec<&str> = arguments(rest).filter_map(bare_offset).collect();
        (is_name && bare.len() >= 2).then_some((path, name, bare))
    })
}

/// The arguments of a function whose opening bracket was taken.
fn arguments(rest: &str) -> impl Iterator<Item = &str> {
    let mut depth = 1;
    let end = rest.find(|found| {
        depth += i32::from(found == '(') - i32::from(found == ')');
        depth == 0
    });
    rest.get(..end.unwrap_or(rest.len())).unwrap_or_default().split(',')
}

/// The name of an argument that is a bare offset or length.
fn bare_offset(argument: &str) -> Option<&str> {
    let (name, kind) = argument.split_once(':')?;
    let name = name.trim().trim_start_matches("mut ");
    (kind.trim() == "u64" && OFFSETS.contains(&name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        complaints(&Tree::of(&[("crates/qcow2/src/x.rs", text)]))
    }

    #[test]
    fn a_function_that_takes_guest_and_host_as_numbers_is_named() {
        let mixed = "impl X {\n    async fn copy<T>(\n        &self,\n        guest: u64,\n        how: fn(u64) -> T,\n        mut host: u64,\n    ) {}\n}\n";
        assert_eq!(
            found(mixed),
            ["crates/qcow2/src/x.rs: copy takes an offset of the guest and one of the file as bare u64"]
        );
        assert_eq!(found("fn copy(guest: u64, host: HostOffset, wanted: u64) {}\n"), [""; 0]);
    }

    #[test]
    fn too_many_pairs_are_listed_and_those_of_tests_and_other_rooms_do_not_count() {
        let many = "fn zero(offset: u64, len: u64) {}\n".repeat(PAIRS_MAX + 1);
        assert!(found(&many).concat().contains("41 functions take two or more bare offsets"));
        assert_eq!(found(&"fn zero(offset: u64, len: u64) {}\n".repeat(PAIRS_MAX)), [""; 0]);
        let tests = format!("const A: u8 = 1;\n\n#[cfg(test)]\nmod tests {{\n{many}}}\n");
        assert_eq!(found(&tests), [""; 0]);
        assert_eq!(complaints(&Tree::of(&[("crates/sim/src/x.rs", &many)])), [""; 0]);
    }
}
