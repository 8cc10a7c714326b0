//! The picture of a lineage: its layers and disks as a tree, and what each takes.

use std::io::{self, Write};
use std::path::Path;

use graph::size::human_size;
use lineage::Backing;
use tool::lineages::seen::Seen;
use tool::lineages::tree::{Node, Tree};
use tool::output::printable;

use super::kind::Kind;
use super::terminal::Canvas;
use crate::log::name_of;

/// What is drawn.
pub struct LineagePicture {
    /// Its directory.
    pub directory: String,
    /// Layers and disks, each behind what it is backed by.
    pub rows: Vec<Row>,
    /// What is said of layers that are not there.
    pub missing: Vec<String>,
}

/// A layer or a disk.
pub struct Row {
    /// Lines of the tree before it: three characters for each node below it that has several over it.
    pub branch: String,
    /// What it is called, behind its mark.
    pub name: String,
    /// The colour of its bar.
    pub kind: Kind,
    /// Bytes that its file takes.
    pub own_bytes: u64,
    /// Bytes that the layers below it take.
    pub shared_bytes: u64,
    /// Layers and disks that are backed by it; `None` of a disk.
    pub users: Option<usize>,
    /// What else is to be known.
    pub about: Option<String>,
}

impl LineagePicture {
    /// Of a lineage.
    pub fn of(seen: &Seen) -> Self {
        let tree = Tree::of(seen);
        let users = seen.survey.all_users();
        let rows = tree.rows().into_iter().map(|row| {
            let image = row.node.image();
            let (name, kind, users) = match row.node {
                Node::Disk(disk) => {
                    let mark = if tree.is_named(disk) { "*" } else { "-" };
                    (format!("{mark} {}", printable(&disk.name)), Kind::Data, None)
                }
                Node::Layer(id, layer) => {
                    let is_named = layer.entry.as_ref().is_some_and(|entry| entry.name.is_some());
                    let name = if is_named { name_of(layer) } else { format!("{} {id}", name_of(layer)) };
                    let kind = if layer.changed.is_some() { Kind::Leaked } else { Kind::Below };
                    (format!("o {name}"), kind, Some(users.get(&id).map_or(0, Vec::len)))
                }
            };
            let about = match (row.node, &image.backing) {
                (Node::Layer(_, layer), _) if layer.changed.is_some() => {
                    let changed = layer.changed.as_deref().unwrap_or_default();
                    Some(format!("changed since it was sealed: {changed}"))
                }
                (_, Backing::Outside(base)) => Some(format!("over {}", printable(base))),
                _ => None,
            };
            let (own_bytes, shared_bytes) = (image.allocated_bytes, tree.shared_by(image));
            Row { branch: row.branch, name, kind, own_bytes, shared_bytes, users, about }
        });
        let directory = seen.survey.place.directory();
        Self { directory: shown(directory), rows: rows.collect(), missing: tree.missing() }
    }

    /// The most that one of them takes: a whole bar.
    pub fn largest(&self) -> u64 {
        self.rows.iter().map(|row| row.own_bytes).max().unwrap_or(0)
    }

    /// All of it in one line.
    pub fn headline(&self) -> String {
        let layers = self.rows.iter().filter(|row| row.users.is_some()).count();
        let bytes = self.rows.iter().map(|row| row.own_bytes).fold(0, u64::saturating_add);
        let disks = self.rows.len() - layers;
        format!(
            "a lineage: {} and {}, {}",
            counted(layers, "layer"),
            counted(disks, "disk"),
            human_size(bytes)
        )
    }
}

impl Row {
    /// What stands beside its name in a drawing.
    pub fn facts(&self) -> String {
        let mut facts =
            format!("own {}, shared {}", human_size(self.own_bytes), human_size(self.shared_bytes));
        match self.users {
            None => {}
            Some(0) => facts += ", no users",
            Some(users) => facts += &format!(", {}", counted(users, "user")),
        }
        if let Some(about) = &self.about {
            facts += &format!(", {about}");
        }
        facts
    }
}

fn counted(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy()).to_string()
}

/// Draws it in a terminal.
pub fn draw(out: &mut dyn Write, canvas: &Canvas, picture: &LineagePicture) -> io::Result<()> {
    writeln!(out, "{}", canvas.cut(&picture.directory))?;
    writeln!(out, "{}", picture.headline())?;
    if !picture.rows.is_empty() {
        let widest = picture.rows.iter().map(|row| row.branch.chars().count() + row.name.chars().count());
        let names = widest.max().unwrap_or(0).min(canvas.columns / 2);
        writeln!(out, "\n{:names$}  {:>9}  {:>9}  {:>5}", "", "own", "shared", "users")?;
        picture.rows.iter().try_for_each(|row| draw_row(out, canvas, row, names, picture.largest()))?;
    }
    picture.missing.iter().try_for_each(|missing| writeln!(out, "{missing}"))
}

fn draw_row(out: &mut dyn Write, canvas: &Canvas, row: &Row, names: usize, largest: u64) -> io::Result<()> {
    let mut branch = row.branch.clone();
    if canvas.ascii {
        branch = branch.replace(['├', '│'], "|").replace('└', "`").replace('─', "-");
    }
    let name = canvas.cut_to(&format!("{branch}{}", row.name), names);
    let (own, shared) = (human_size(row.own_bytes), human_size(row.shared_bytes));
    let users = row.users.map_or_else(String::new, |users| users.to_string());
    let line = format!("{name:names$}  {own:>9}  {shared:>9}  {users:>5}");
    let room = canvas.columns.saturating_sub(line.chars().count() + 2);
    let bar = canvas.paint(row.kind, &canvas.bar(row.kind, row.own_bytes, largest, room));
    writeln!(out, "{}", format!("{line}  {bar}").trim_end())?;
    match &row.about {
        // Under its name.
        Some(about) => {
            let before = " ".repeat(branch.chars().count() + 2);
            writeln!(out, "{}", canvas.cut(&format!("{before}{about}")))
        }
        None => Ok(()),
    }
}
