//! Files of a crate depend on each other in small circles at most: a file in a large one cannot be read without all others.
//!
//! What a file depends on is read from its paths. A name that a module hands on (`pub use`) counts for the file that has it.

use std::collections::{BTreeMap, BTreeSet};

use super::sizes::without_tests;
use super::tree::Tree;

/// Files of a circle at most.
const CIRCLE_MAX: usize = 5;

/// Crates with larger ones: the simulation does not ship.
const LARGER: [&str; 1] = ["sim"];

/// Names from the crate's root to a module, or to something in it.
type Names = Vec<String>;

pub fn complaints(tree: &Tree) -> Vec<String> {
    let mut crates: BTreeMap<&str, Crate> = BTreeMap::new();
    for (path, text) in tree.ending(".rs") {
        let parts = path.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/"));
        let Some((name, file)) = parts.filter(|(name, _)| !LARGER.contains(name)) else { continue };
        if let Some(names) = module_names(file) {
            crates.entry(name).or_default().0.insert(names, Module::read(file, without_tests(text)));
        }
    }
    for (path, text) in tree.ending("/src/lib.rs") {
        let name = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/src/lib.rs"));
        let Some(files) = name.and_then(|name| crates.get_mut(name)) else { continue };
        for of_tests in text.split("\n#[cfg(test)]\nmod ").skip(1).filter_map(|rest| rest.split(';').next()) {
            files.0.retain(|names, _| names.first().is_none_or(|first| first != of_tests));
        }
    }
    crates.into_iter().filter_map(|(name, files)| complaint(name, &files)).collect()
}

fn complaint(name: &str, files: &Crate) -> Option<String> {
    let circle = largest_circle(&files.dependencies());
    (circle.len() > CIRCLE_MAX).then(|| {
        let shown: Vec<_> = circle.iter().map(String::as_str).collect();
        format!(
            "crates/{name}: {} files depend on each other in a circle, of at most {CIRCLE_MAX}: {}; move what ties them to a file of its own",
            circle.len(),
            shown.join(", ")
        )
    })
}

/// The module that a file below `src` is; `None` of tests and programs.
fn module_names(file: &str) -> Option<Names> {
    let module = file.strip_suffix(".rs")?;
    let is_test = |part: &str| part == "tests" || part.ends_with("_tests");
    if module == "main" || module.split('/').any(is_test) {
        return None;
    }
    let module = module.strip_suffix("/mod").unwrap_or(module);
    Some(if module == "lib" { Names::new() } else { module.split('/').map(str::to_owned).collect() })
}

/// The files of a crate, by module.
#[derive(Default)]
struct Crate(BTreeMap<Names, Module>);

/// What a file says of others.
struct Module {
    file: String,
    imports: Vec<Import>,
    /// Paths in its code, beside those of imports.
    paths: Vec<Names>,
}

/// `use path as name`.
struct Import {
    path: Names,
    name: String,
    is_public: bool,
}

impl Module {
    fn read(file: &str, text: &str) -> Self {
        let mut module = Self { file: file.to_owned(), imports: Vec::new(), paths: Vec::new() };
        let text = without_comments_and_texts(text);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let (is_public, rest) = visibility(line.trim());
            let Some(first) = rest.strip_prefix("use ") else {
                module.paths.extend(paths_of(line));
                continue;
            };
            let mut tree = first.to_owned();
            while !tree.contains(';') {
                let Some(next) = lines.next() else { break };
                tree.push_str(next.trim());
            }
            let tree = tree.split(';').next().unwrap_or_default();
            let named = imports_of(&[], tree).into_iter();
            module.imports.extend(named.map(|(path, name)| Import { path, name, is_public }));
        }
        module
    }
}

/// Whether an item is public in some way, and what it is without that.
fn visibility(line: &str) -> (bool, &str) {
    match line.strip_prefix("pub") {
        None => (false, line),
        Some(rest) => {
            let rest = rest.trim_start();
            let inside = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
            (true, inside.map_or(rest, |(_, rest)| rest).trim_start())
        }
    }
}

/// The paths of a tree of imports, each with the name that it has here.
fn imports_of(before: &[String], tree: &str) -> Vec<(Names, String)> {
    let (mut depth, mut start, mut parts) = (0_u32, 0, Vec::new());
    for (at, letter) in tree.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.extend(tree.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.extend(tree.get(start..));
    let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    parts.flat_map(|part| import_of(before, part)).collect()
}

fn import_of(before: &[String], part: &str) -> Vec<(Names, String)> {
    let names = |text: &str| text.split("::").map(str::trim).map(str::to_owned).collect::<Names>();
    if let Some((prefix, inner)) = part.split_once('{') {
        let own = names(prefix.trim().trim_end_matches("::")).into_iter().filter(|name| !name.is_empty());
        let before: Names = before.iter().cloned().chain(own).collect();
        return imports_of(&before, inner.trim_end().trim_end_matches('}'));
    }
    let (path, alias) = part.split_once(" as ").unwrap_or((part, ""));
    let mut path: Names = before.iter().cloned().chain(names(path)).collect();
    if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
        path.pop();
    }
    let last = path.last().cloned().unwrap_or_default();
    vec![(path, if alias.is_empty() { last } else { alias.trim().to_owned() })]
}

/// `a::b::c` in a line of code.
fn paths_of(line: &str) -> impl Iterator<Item = Names> + '_ {
    let is_of_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let words = line.split(move |letter| !is_of_path(letter)).filter(|word| word.contains("::"));
    words.map(|word| word.trim_matches(':').split("::").map(str::to_owned).collect())
}

/// Code alone: a path in a comment or in a text ties nothing.
fn without_comments_and_texts(text: &str) -> String {
    let mut code = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '/' if letters.peek() == Some(&'/') => {
                letters.by_ref().find(|&letter| letter == '\n');
                code.push('\n');
            }
            '"' if code.ends_with('\'') => code.push(letter),
            '"' => {
                while let Some(letter) = letters.next().filter(|&letter| letter != '"') {
                    if letter == '\\' {
                        letters.next();
                    }
                }
            }
            _ => code.push(letter),
        }
    }
    code
}

impl Crate {
    /// The files that each file depends on.
    fn dependencies(&self) -> BTreeMap<String, BTreeSet<String>> {
        let of = |(names, module): (&Names, &Module)| {
            let found = self.used(names, module).into_iter().filter(|file| *file != module.file).collect();
            (module.file.clone(), found)
        };
        self.0.iter().map(of).collect()
    }

    fn used(&self, names: &[String], module: &Module) -> BTreeSet<String> {
        let mut files = BTreeSet::new();
        for import in module.imports.iter().filter(|import| !import.is_public) {
            // An imported module is used by the paths that begin with its name.
            let is_glob = import.name == "*";
            let path = if is_glob {
                import.path.split_last().map_or(&[][..], |(_, path)| path)
            } else {
                &import.path
            };
            if is_glob || self.module(names, path).is_none() {
                files.extend(self.find(names, path, 0));
            }
        }
        let found = module.paths.iter().filter_map(|path| self.find(names, path, 0));
        files.extend(found);
        files
    }

    /// The module that a path names as a whole, if it names one.
    fn module(&self, from: &[String], path: &[String]) -> Option<Names> {
        let (at, rest) = self.start(from, path)?;
        let whole: Names = at.into_iter().chain(rest.iter().cloned()).collect();
        self.0.contains_key(&whole).then_some(whole)
    }

    /// Where a path of this crate begins, and what follows; `None` of another crate's, or of a name in the file.
    fn start<'a>(&self, from: &[String], path: &'a [String]) -> Option<(Names, &'a [String])> {
        let (first, mut rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some((Names::new(), rest)),
            "self" => Some((from.to_vec(), rest)),
            "super" => {
                let mut at = from.split_last()?.1;
                while let Some((_, next)) = rest.split_first().filter(|(name, _)| *name == "super") {
                    (at, rest) = (at.split_last()?.1, next);
                }
                Some((at.to_vec(), rest))
            }
            child => {
                let below: Names = from.iter().cloned().chain([child.to_owned()]).collect();
                self.0.contains_key(&below).then_some((below, rest))
            }
        }
    }

    /// The file that has what a path means, as the module `from` sees it.
    fn find(&self, from: &[String], path: &[String], depth: u32) -> Option<String> {
        if depth > 8 {
            return None;
        }
        let Some((mut at, rest)) = self.start(from, path) else {
            let (first, rest) = path.split_first()?;
            let import = self.0.get(from)?.imports.iter().find(|import| import.name == *first)?;
            let whole: Names = import.path.iter().chain(rest).cloned().collect();
            return (import.path.first() != Some(first)).then(|| self.find(from, &whole, depth + 1))?;
        };
        for (index, name) in rest.iter().enumerate() {
            let below: Names = at.iter().chain([name]).cloned().collect();
            if self.0.contains_key(&below) {
                at = below;
                continue;
            }
            let module = self.0.get(&at)?;
            // What is imported in private is seen by the module itself and those below it.
            let is_seen = |import: &&Import| import.is_public || from.starts_with(&at);
            let mut named = module.imports.iter().filter(|import| import.name == *name);
            let Some(import) = named.find(is_seen) else { break };
            let after = rest.get(index + 1..).unwrap_or_default();
            let whole: Names = import.path.iter().chain(after).cloned().collect();
            return self.find(&at, &whole, depth + 1);
        }
        self.0.get(&at).map(|module| module.file.clone())
    }
}

/// The most files each of which depends on all others, straight or through them.
fn largest_circle(uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let reached: BTreeMap<_, _> = uses.keys().map(|file| (file, reached_from(file, uses))).collect();
    let circle = |file: &String| {
        let leads_back = |other: &&String| reached.get(other).is_some_and(|all| all.contains(file));
        reached.get(file).into_iter().flatten().filter(leads_back).cloned().collect::<BTreeSet<_>>()
    };
    uses.keys().map(circle).max_by_key(BTreeSet::len).unwrap_or_default()
}

fn reached_from(file: &str, uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![file]);
    while let Some(file) = next.pop() {
        for used in uses.get(file).into_iter().flatten() {
            if reached.insert(used.clone()) {
                next.push(used);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate whose files each use the next one, the last the first, by `path`.
    fn ring(files: usize, path: fn(usize) -> String) -> Vec<String> {
        let name = |index: usize| format!("crates/x/src/part{index}.rs");
        let texts: Vec<_> = (0..files).map(|index| (name(index), path((index + 1) % files))).collect();
        let texts: Vec<_> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        complaints(&Tree::of(&texts))
    }

    #[test]
    fn a_circle_of_six_files_is_found_and_one_of_five_is_not() {
        let by_use: fn(usize) -> String = |next| format!("use crate::part{next}::Thing;\n");
        assert_eq!(ring(5, by_use), [""; 0]);
        let found = ring(6, by_use);
        assert!(
            found[0].starts_with("crates/x: 6 files depend") && found[0].contains("part5.rs"),
            "{found:?}"
        );
        for path in [
            |next| format!("fn work() {{\n    super::part{next}::work();\n}}\n"),
            |next| format!("use crate::{{\n    part{next} as other,\n}};\nfn work() {{ other::work() }}\n"),
            |next| format!("pub fn work(_: &crate::part{next}::Thing) {{}}\n"),
        ] as [fn(usize) -> String; 3]
        {
            assert_eq!(ring(6, path).len(), 1, "{}", path(1));
        }
    }

    #[test]
    fn comments_texts_and_tests_tie_nothing() {
        for path in [
            |next| format!("/// As [`crate::part{next}::Thing`].\nstruct Thing;\n"),
            |next| format!("const TEXT: &str = \"crate::part{next}::Thing\";\n"),
            |next| format!("\n#[cfg(test)]\nmod tests {{\n    use crate::part{next}::Thing;\n}}\n"),
            |next| format!("use crate::part{next};\n"),
        ] as [fn(usize) -> String; 4]
        {
            assert_eq!(ring(6, path), [""; 0], "{}", path(1));
        }
    }

    #[test]
    fn a_name_that_a_module_hands_on_counts_for_the_file_that_has_it() {
        let front = "mod a;\nmod b;\npub use a::A;\npub use b::B;\n";
        let mut files = vec![("crates/x/src/lib.rs", front), ("crates/x/src/b.rs", "pub struct B;\n")];
        files.push(("crates/x/src/a.rs", "use crate::B;\n"));
        let names = ["c", "d", "e", "f"].map(|name| format!("crates/x/src/{name}.rs"));
        files.extend(names.iter().map(|name| (name.as_str(), "use crate::{A, B};\n")));
        assert_eq!(complaints(&Tree::of(&files)), [""; 0]);
    }
}
