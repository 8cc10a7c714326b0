//! Which crates a registry gets: those of [`ROOTS`], and what they are built of. All others have `publish = false`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::output;
use crate::workspace::{cargo, root, target_directory};

/// What is published for its own sake: the library and the program.
const ROOTS: [&str; 2] = ["cowhand", "cowhand-cli"];

/// Packs every crate that is published, as `cargo publish` does without sending it.
///
/// # Errors
/// When a manifest lacks what a registry asks for, or cargo does not pack it.
pub fn package() -> Result<(), String> {
    let mut metadata = cargo();
    let metadata = output(metadata.args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = Packages::of(&metadata);
    let complaints = packages.complaints(&root());
    if !complaints.is_empty() {
        return Err(complaints.join("\n"));
    }
    let published = packages.published();
    let mut package = cargo();
    // What is not committed yet is packed, too.
    package.args(["package", "--locked", "--offline", "--no-verify", "--allow-dirty", "--quiet"]);
    package.arg("--target-dir").arg(target_directory().join("library/package"));
    for name in &published {
        package.args(["--package", name]);
    }
    output(&mut package)?;
    println!("{} crates are packed", published.len());
    Ok(())
}

/// The packages of the workspace, as cargo lists them.
struct Packages<'a>(BTreeMap<&'a str, &'a Value>);

impl<'a> Packages<'a> {
    fn of(metadata: &'a Value) -> Self {
        let listed = metadata["packages"].as_array().into_iter().flatten();
        Self(listed.filter_map(|package| Some((package["name"].as_str()?, package))).collect())
    }

    /// The roots, and what they are built of.
    fn published(&self) -> BTreeSet<&'a str> {
        let mut found = BTreeSet::new();
        let mut next: Vec<&str> = ROOTS.into_iter().collect();
        while let Some(name) = next.pop() {
            let Some((name, package)) = self.0.get_key_value(name) else { continue };
            if found.insert(*name) {
                next.extend(own_dependencies(package).filter_map(|used| used["name"].as_str()));
            }
        }
        found
    }

    /// What a registry would refuse, or a reader miss.
    fn complaints(&self, root: &Path) -> Vec<String> {
        let published = self.published();
        let mut complaints = Vec::new();
        for (name, package) in &self.0 {
            let is_private = package["publish"].as_array().is_some_and(Vec::is_empty);
            match (published.contains(name), is_private) {
                (true, true) => {
                    complaints.push(format!("{name}: publish = false, and a published crate needs it"))
                }
                (false, false) => {
                    complaints.push(format!("{name}: nothing published needs it: publish = false"))
                }
                (false, true) => {}
                (true, false) => complaints.extend(of_manifest(name, package, root)),
            }
        }
        complaints
    }
}

fn of_manifest(name: &str, package: &Value, root: &Path) -> Vec<String> {
    let is_missing = |field: &str| package[field].as_str().is_none_or(str::is_empty);
    let fields = ["description", "license", "readme", "repository", "rust_version"];
    let mut complaints: Vec<String> = fields
        .into_iter()
        .filter(|field| is_missing(field))
        .map(|field| format!("{name}: no {field}"))
        .collect();
    let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
    let directory = manifest.parent().unwrap_or(root);
    if let Some(readme) = package["readme"].as_str().filter(|readme| !directory.join(readme).is_file()) {
        complaints.push(format!("{name}: there is no {readme}"));
    }
    let any =
        own_dependencies(package).filter(|used| used["req"].as_str().is_none_or(|version| version == "*"));
    complaints.extend(any.map(|used| format!("{name}: {} has no version", used["name"])));
    complaints
}

/// Dependencies in this tree, but for those of tests.
fn own_dependencies(package: &Value) -> impl Iterator<Item = &Value> {
    let all = package["dependencies"].as_array().into_iter().flatten();
    all.filter(|used| used["path"].is_string() && used["kind"].as_str() != Some("dev"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, publish: Value, needs: &[&str]) -> Value {
        let needs: Vec<Value> = needs
            .iter()
            .map(|used| json!({"name": used, "path": "/x", "kind": null, "req": "^0.1.0"}))
            .collect();
        json!({
            "name": name, "publish": publish, "dependencies": needs, "manifest_path": "/nowhere/Cargo.toml",
            "description": "d", "license": "MIT", "readme": null, "repository": "r", "rust_version": "1.89",
        })
    }

    #[test]
    fn what_a_published_crate_needs_is_published_and_nothing_else() {
        let metadata = json!({"packages": [
            package("cowhand", Value::Null, &["cowhand-low"]),
            package("cowhand-cli", Value::Null, &["cowhand"]),
            package("cowhand-low", json!([]), &[]),
            package("cowhand-sim", Value::Null, &[]),
            package("xtask", json!([]), &[]),
        ]});
        let packages = Packages::of(&metadata);
        assert_eq!(
            packages.published().into_iter().collect::<Vec<_>>(),
            ["cowhand", "cowhand-cli", "cowhand-low"]
        );
        let complaints = packages.complaints(Path::new("/nowhere"));
        assert_eq!(
            complaints,
            [
                "cowhand: no readme",
                "cowhand-cli: no readme",
                "cowhand-low: publish = false, and a published crate needs it",
                "cowhand-sim: nothing published needs it: publish = false",
            ]
        );
    }

    #[test]
    fn every_crate_that_is_published_can_be() {
        let mut metadata = cargo();
        let metadata = output(metadata.args(["metadata", "--no-deps", "--format-version", "1"])).unwrap();
        let metadata: Value = serde_json::from_str(&metadata).unwrap();
        assert_eq!(Packages::of(&metadata).complaints(&root()), [""; 0]);
    }
}
