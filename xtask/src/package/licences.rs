//! Licences of the libraries that are linked into the program: they ask to be named.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::{failed, output};
use crate::workspace::cargo;

/// Beginnings of names of files that hold a licence.
const NAMES: [&str; 5] = ["licen", "copying", "notice", "unlicense", "copyright"];

/// Every library with the licence that it names, then each text once, with the libraries that it comes with.
pub fn text() -> Result<String, String> {
    let mut list = String::from("Libraries that are linked into cowhand\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for library in libraries()? {
        let field = |name: &str| library[name].as_str().unwrap_or("").to_owned();
        let name = format!("{} {}", field("name"), field("version"));
        list += &format!("{name}: {}\n", field("license"));
        let manifest = field("manifest_path");
        let directory = Path::new(&manifest).parent().unwrap_or(Path::new("."));
        for text in texts_in(directory)? {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    for (text, names) in texts {
        list += &format!("\n{}\n{}:\n\n{}\n", "-".repeat(78), names.join(", "), text.trim_end());
    }
    Ok(list)
}

/// What cargo says of each package from a registry that the program is built with.
fn libraries() -> Result<Vec<Value>, String> {
    let mut tree = cargo();
    tree.args([
        "tree",
        "--package",
        "cowhand-cli",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]);
    let tree = output(&mut tree)?;
    let used: Vec<(&str, &str)> = tree.lines().filter_map(name_and_version).collect();
    let mut metadata = cargo();
    let metadata = output(metadata.args(["metadata", "--format-version", "1", "--locked"]))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let is_used = |package: &Value| {
        let (name, version) = (package["name"].as_str(), package["version"].as_str());
        !package["source"].is_null()
            && used.iter().any(|used| (Some(used.0), Some(used.1)) == (name, version))
    };
    Ok(packages.into_iter().filter(is_used).collect())
}

/// Of a line such as `clap v4.6.6 (*)`.
fn name_and_version(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}

fn texts_in(directory: &Path) -> Result<Vec<String>, String> {
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|error| failed(directory, &error))? {
        let path = entry.map_err(|error| failed(directory, &error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if path.is_file() && NAMES.iter().any(|begin| name.starts_with(begin)) {
            texts.push(std::fs::read_to_string(&path).map_err(|error| failed(&path, &error))?);
        }
    }
    texts.sort();
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_cargo_tree_names_a_library_and_its_version() {
        assert_eq!(name_and_version("clap v4.6.6 (*)"), Some(("clap", "4.6.6")));
        assert_eq!(name_and_version(""), None);
    }
}
