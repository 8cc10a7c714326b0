//! The package for Go: vetted, formatted, and its own tests, as Debian's Go runs them.

use std::process::Command;

use crate::installed::{prefix, project, succeed, with_library};
use crate::store::Store;

/// Go in the package's directory, with caches in the build's directory.
pub fn go() -> Command {
    let mut go = Command::new("go");
    go.current_dir(project().join("bindings/go"));
    go.env("GOCACHE", prefix().join("go-cache")).env("GOFLAGS", "-mod=mod").env("GOPROXY", "off");
    with_library(&mut go);
    go
}

#[test]
fn the_packages_own_tests_pass_and_nothing_is_found_by_vet() {
    let unformatted = succeed(Command::new("gofmt").arg("-l").arg(project().join("bindings/go")));
    assert_eq!(unformatted, "");
    succeed(go().args(["vet", "./..."]));
    let store = Store::start();
    let printed = succeed(store.below(go().args(["test", "-count=1", "-v", "./..."])));
    assert_eq!(printed.matches("--- PASS").count(), 14, "{printed}");
}
