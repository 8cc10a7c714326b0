//! The example of the library's page in a program of its own, as a reader pastes it.

use std::fs;
use std::path::Path;

use super::output;
use crate::workspace::{cargo, root, target_directory};

/// The page.
const PAGE: &str = "crates/cowhand/README.md";

/// Pastes the example into an empty program that depends on the library and on nothing else, builds it, and runs it.
pub fn build_and_run() -> Result<(), String> {
    let page = fs::read_to_string(root().join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let example = example(&page).ok_or_else(|| format!("{PAGE}: there is no example in Rust"))?;
    let directory = target_directory().join("library");
    let program = directory.join("pasted");
    lay_out(&program, example).map_err(|error| format!("{}: {error}", program.display()))?;
    let mut run = cargo();
    run.args(["run", "--offline", "--manifest-path"]).arg(program.join("Cargo.toml"));
    output(run.arg("--target-dir").arg(directory.join("build"))).map(drop)
}

fn lay_out(program: &Path, example: &str) -> std::io::Result<()> {
    let library = root().join("crates/cowhand");
    let manifest = format!(
        "[package]\nname = \"pasted\"\nedition = \"2024\"\n\n[dependencies]\ncowhand = {{ path = {:?} }}\n\n[workspace]\n",
        library.display().to_string()
    );
    fs::create_dir_all(program.join("src"))?;
    fs::write(program.join("Cargo.toml"), manifest)?;
    // The versions that the tests have.
    fs::copy(root().join("Cargo.lock"), program.join("Cargo.lock"))?;
    fs::write(program.join("src/main.rs"), example)
}

/// The first example in Rust of a page.
fn example(page: &str) -> Option<&str> {
    let (_, behind) = page.split_once("```rust\n")?;
    behind.split_once("\n```").map(|(example, _)| example)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_block_of_rust_is_the_example() {
        let page = "# x\n\n```sh\nls\n```\n\n```rust\nfn main() {}\n```\n\n```rust\nno\n```\n";
        assert_eq!(example(page), Some("fn main() {}"));
        assert_eq!(example("# x\n"), None);
    }
}
