//! nginx: ranges, versions, passwords, TLS, and its death.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use black_box::Nginx;
use memory::secret::Secret;
use net::tls::{ClientCredentials, ClientFiles};
use remote::http::{Fixed, HttpStorage, Options};
use storage::Storage;

use crate::http::support::{SIZE, content, options, read, run};

fn certificates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../door-nbd/tests/all/tls")
}

/// nginx with the file `disk`.
fn nginx() -> (tempfile::TempDir, Nginx) {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("disk"), content(0, SIZE as usize)).unwrap();
    let nginx = Nginx::start(files.path(), &certificates());
    (files, nginx)
}

async fn reads_right(storage: &dyn Storage) {
    assert_eq!(storage.length(), SIZE);
    for offset in [0, 1, 65_535, 65_536, 1 << 20, SIZE - 5000] {
        assert_eq!(read(storage, offset, 5000).await.unwrap(), content(offset, 5000), "{offset}");
    }
    assert!(read(storage, 0, SIZE as usize).await.unwrap() == content(0, SIZE as usize));
}

#[test]
fn a_file_of_nginx_reads_as_it_is_also_behind_a_password_and_a_redirect() {
    let (_files, nginx) = nginx();
    run(async {
        for path in ["/disk", "/moved", "/packed/disk"] {
            reads_right(&HttpStorage::open(options(&nginx.url(path))).await.unwrap()).await;
        }
        let password = Secret::copy_of(b"hush");
        let authorize = Arc::new(Fixed::new(None, Some(("user", &password))));
        let locked = Options { authorize, ..options(&nginx.url("/locked/disk")) };
        reads_right(&HttpStorage::open(locked).await.unwrap()).await;
        for (path, words) in
            [("/locked/disk", "answers 401"), ("/none", "answers 404"), ("/whole/disk", "no ranges")]
        {
            let error = HttpStorage::open(options(&nginx.url(path))).await.unwrap_err().to_string();
            assert!(error.contains(words), "{path}: {error}");
        }
    });
}

#[test]
fn a_file_that_nginx_serves_and_somebody_changes_is_an_error() {
    let (files, nginx) = nginx();
    run(async {
        let storage = HttpStorage::open(options(&nginx.url("/disk"))).await.unwrap();
        let file = files.path().join("disk");
        std::fs::write(&file, vec![0xff; SIZE as usize]).unwrap();
        let later = std::time::SystemTime::now() + Duration::from_secs(2);
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(later).unwrap();
        let error = read(&storage, 1 << 20, 5000).await.unwrap_err().to_string();
        assert!(error.contains("was changed while it was open"), "{error}");
    });
}

#[test]
fn nginx_that_is_killed_and_comes_back_costs_a_wait() {
    let (_files, mut nginx) = nginx();
    run(async {
        let storage = HttpStorage::open(options(&nginx.url("/disk"))).await.unwrap();
        for _ in 0..3 {
            nginx.kill();
            let mut killed = nginx;
            let restarted = reactor::blocking(move || {
                std::thread::sleep(Duration::from_millis(300));
                killed.restart();
                killed
            });
            let (read, back) = futures_util::future::join(read(&storage, 3 << 20, 5000), restarted).await;
            assert_eq!(read.unwrap(), content(3 << 20, 5000));
            nginx = back;
        }
    });
}

#[test]
fn over_tls_a_server_is_read_whose_certificate_is_believed_and_no_other() {
    let (_files, nginx) = nginx();
    let believes = |authority: Option<&str>| {
        let authority = authority.map(|file| certificates().join(file));
        ClientFiles { authority, identity: None, terms: net::tls::Terms::default() }.read().unwrap()
    };
    let https = |tls: ClientCredentials| Options { tls: Some(tls), ..options(&nginx.tls_url("/disk")) };
    run(async {
        let storage = HttpStorage::open(https(believes(Some("ca.pem")))).await.unwrap();
        reads_right(&storage).await;
        reads_right(&HttpStorage::open(https(believes(None))).await.unwrap()).await;
        let strangers = believes(Some("stranger.pem"));
        let error = HttpStorage::open(https(strangers)).await.unwrap_err().to_string();
        assert!(error.contains("TLS: ") && error.contains("certificate"), "{error}");
    });
}
