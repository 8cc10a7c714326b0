//! The picture of a lineage says what `cowhand log` says.

use black_box::cowhand;
use serde_json::Value;

use super::Lineage;

/// A lineage of hundreds of layers was lines of text: which of them takes the room was for the reader to find.
#[test]
fn a_lineage_is_drawn_as_a_tree_with_a_bar_for_what_each_file_takes() {
    let lineage = Lineage::new();
    let (disk, fork, directory) =
        (lineage.name("d.qcow2"), lineage.name("<f>.qcow2"), lineage.scratch.path().to_str().expect("text"));
    cowhand(["io", "-c", "write -P 7 0 8M", &disk]).ok();
    cowhand(["checkpoint", "-q", &disk, "second"]).ok();
    cowhand(["fork", "-q", &format!("{disk}@first"), &fork]).ok();
    cowhand(["io", "-c", "write -P 8 0 4M", &fork]).ok();
    let drawn = cowhand(["show", "--lineage", "--width", "100", &disk]).ok();
    assert!(drawn.starts_with(&format!("{directory}\na lineage: 2 layers and 2 disks, ")), "{drawn}");
    let line = |name: &str| {
        let line = drawn.lines().find(|line| line.contains(name));
        line.unwrap_or_else(|| panic!("no {name} in {drawn}")).to_owned()
    };
    let bar = |name: &str| line(name).chars().filter(|c| *c == '█').count();
    // The largest file has a whole bar, and one of half as much half of it.
    let (most, half) = (bar("d.qcow2@second"), bar("<f>.qcow2"));
    assert!(most > 20 && (most / 2 - 1..=most / 2 + 1).contains(&half), "{drawn}");
    assert!(line("d.qcow2@first").starts_with("o ") && line("d.qcow2@first").contains("  2  "), "{drawn}");
    assert!(line("d.qcow2@second").starts_with("├─ o ") && line("* d.qcow2").starts_with("│  *"), "{drawn}");
    assert!(line("<f>.qcow2").starts_with("└─ - "), "{drawn}");
    assert!(drawn.lines().all(|line| line.chars().count() <= 100), "{drawn}");
    // A directory is one by itself, and no disk of it is the named one.
    let ascii = cowhand(["show", "--ascii", "--width", "100", directory]).ok();
    assert!(
        ascii.is_ascii() && ascii.contains("\n|- o d.qcow2@second") && ascii.contains("\n|  - d.qcow2"),
        "{ascii}"
    );
    let shown: Value = cowhand(["show", "--output", "json", directory]).json();
    assert_eq!(shown, lineage.log());
    // A server's disk, and files that a browser draws.
    let server = lineage.serve();
    let (svg, html) = (lineage.name("a.svg"), lineage.name("a.html"));
    let said = cowhand(["show", "--lineage", "--svg", &svg, "--html", &html, &lineage.name("qmp")]).ok();
    assert_eq!(said, "");
    server.stop();
    for file in [svg, html] {
        let text = std::fs::read_to_string(&file).expect("a picture");
        assert!(text.contains("o d.qcow2@second") && text.contains("- &lt;f&gt;.qcow2"), "{text}");
        assert!(text.contains("2 layers and 2 disks") && !text.contains("<f>"), "{text}");
        assert_eq!(text.matches("class=\"below\"").count(), 2, "{text}");
    }
    let refused = cowhand(["show", "--lineage", "-f", "qcow2", &disk]).fails();
    assert!(refused.contains("no disk of a lineage is opened"), "{refused}");
    lineage.is_sound();
}

#[test]
fn what_is_wrong_with_a_lineage_is_in_its_picture() {
    let lineage = Lineage::new();
    let disk = lineage.name("d.qcow2");
    cowhand(["checkpoint", "-q", &disk, "second"]).ok();
    let log = lineage.log();
    let layers = log["disks"][0]["layers"].as_array().expect("layers");
    let id = |at: usize| layers[at].as_str().expect("an id").to_owned();
    let file = lineage.name(&format!("layers/{}.qcow2", id(0)));
    let bytes = std::fs::read(&file).expect("a layer");
    std::fs::remove_file(&file).expect("a layer");
    std::fs::write(&file, bytes).expect("a layer");
    let drawn = cowhand(["show", "--lineage", &disk]).ok();
    assert!(drawn.contains("  changed since it was sealed: "), "{drawn}");
    std::fs::remove_file(lineage.name(&format!("layers/{}.qcow2", id(1)))).expect("a layer");
    let drawn = cowhand(["show", "--lineage", &disk]).ok();
    assert!(drawn.contains(&format!("layer {} is missing: ", id(1))), "{drawn}");
    let empty = lineage.scratch.file("empty");
    std::fs::create_dir(&empty).expect("a directory");
    let refused = cowhand(["show", empty.to_str().expect("text")]).fails();
    assert!(refused.contains("cowhand checkpoint DISK makes one"), "{refused}");
}
