//! The client for Python: its own tests, as the system's interpreter runs them.

use std::path::Path;

use black_box::{Moto, Run, program};

#[test]
fn the_clients_own_tests_pass() {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/python");
    let store = Moto::start();
    store.put("/images", b"");
    let tests = store
        .below(Run::new("/usr/bin/python3"))
        .args(["-W", "error", "-m", "unittest", "discover", "--start-directory", "tests"])
        .env("COWHAND_BIN", program::path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(&client)
        .outcome();
    // It also succeeds where it finds none.
    assert!(tests.stderr.contains("Ran 8 tests") && tests.stderr.contains("\nOK\n"), "{tests}");
}
