//! Servers that do everything wrong: no wrong byte, and no wait beyond the deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use memory::secret::Secret;
use remote::http::{Fixed, HttpStorage, Options};
use storage::Storage;

use crate::http::support::{Reply, Request, SIZE, Server, content, open, options, read, run};

/// What a server does once.
type Once = fn(&Request) -> Reply;
/// Likewise, with what it knows.
type Fault = Box<dyn Fn(&Request) -> Reply + Send + Sync>;

/// A server that serves the file, and answers the second request (the first after the opening) with `fault`.
fn once(fault: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Server {
    Server::start(move |asked| if asked.number == 1 { fault(asked) } else { asked.part() })
}

const FAR: u64 = 5 << 20;

#[test]
fn what_fails_for_a_while_is_tried_again_and_reads_as_it_should() {
    let faults: [(&str, Once); 8] = [
        ("503", |_| Reply::status("503 Slow Down")),
        ("429", |_| Reply::new("429 Too Many Requests", "Retry-After: 0\r\nContent-Length: 5\r\n", b"later")),
        ("500 in pieces", |_| Reply::new("500 Oops", "Transfer-Encoding: chunked\r\n", b"0\r\n\r\n")),
        ("no answer", |_| Reply::Cut(Vec::new())),
        ("half a head", |_| Reply::Cut(b"HTTP/1.1 206 Par".to_vec())),
        ("half a body", |asked| asked.part().cut_after(1000)),
        ("silence", |_| Reply::Silence),
        ("an early hint", |asked| match asked.part() {
            Reply::Bytes(part) => Reply::Bytes([b"HTTP/1.1 103 Early Hints\r\n\r\n", &part[..]].concat()),
            other => other,
        }),
    ];
    for (name, fault) in faults {
        let server = once(fault);
        run(async {
            let storage = open(&server.url()).await.unwrap();
            assert_eq!(storage.length(), SIZE);
            assert_eq!(read(&storage, FAR, 5000).await.unwrap(), content(FAR, 5000), "{name}");
        });
    }
}

#[test]
fn what_is_final_is_an_error_at_once_that_says_what_the_server_said() {
    let xml = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><StringToSign>hush</StringToSign></Error>";
    let faults: [(&str, Fault); 8] = [
        ("answers 404 (there is no such file)", Box::new(|_| Reply::status("404 Not Found"))),
        ("answers 403 (it is not allowed)", Box::new(|_| Reply::status("403 Forbidden"))),
        (
            "answers 404 (NoSuchKey)",
            Box::new(move |_| {
                Reply::new("404 Not Found", &format!("Content-Length: {}\r\n", xml.len()), xml.as_bytes())
            }),
        ),
        ("was changed while it was open", Box::new(|_| Reply::status("412 Precondition Failed"))),
        (
            "it ends before byte 5242880 of 8388608",
            Box::new(|_| Reply::new("416 R", "Content-Range: bytes */100\r\nContent-Length: 0\r\n", b"")),
        ),
        ("its ETag is \"2\" and was \"1\"", Box::new(|asked| asked.part_of(SIZE, "\"2\""))),
        ("it has 9000000 bytes and had 8388608", Box::new(|asked| asked.part_of(9_000_000, "\"1\""))),
        (
            "asked for were 5242880-5247879",
            Box::new(|asked| Request { first: 0, last: 4999, ..asked.clone() }.part()),
        ),
    ];
    for (words, fault) in faults {
        let server = once(fault);
        run(async {
            let storage = open(&server.url()).await.unwrap();
            let error = read(&storage, FAR, 5000).await.unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("hush"), "{words}: {error}");
            // The disk goes on.
            assert_eq!(read(&storage, 0, 100).await.unwrap(), content(0, 100), "{words}");
        });
    }
}

/// QEMU reads such a file as a whole for each request, or mixes two versions of it.
#[test]
fn a_file_that_cannot_be_read_in_parts_or_has_no_version_is_not_opened() {
    let whole = |_: &Request| Reply::new("200 OK", "Content-Length: 3\r\nETag: \"1\"\r\n", b"abc");
    let nameless = |asked: &Request| {
        let fields = format!("Content-Range: bytes 0-2/3\r\nContent-Length: 3\r\nX: {}\r\n", asked.number);
        Reply::new("206 Partial Content", &fields, b"abc")
    };
    let servers = [(Server::start(whole), "knows no ranges"), (Server::start(nameless), "names no version")];
    for (server, words) in servers {
        let error = run(open(&server.url())).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let empty = Server::start(|_| Reply::new("200 OK", "Content-Length: 0\r\n", b""));
    run(async {
        let storage = open(&empty.url()).await.unwrap();
        assert_eq!(storage.length(), 0);
        assert_eq!(read(&storage, 0, 10).await.unwrap(), [0; 10]);
    });
    let short = Server::start(|asked| asked.part_of(1000, "\"1\""));
    run(async {
        let storage = open(&short.url()).await.unwrap();
        let expected = [content(0, 1000), vec![0; 24]].concat();
        assert_eq!(read(&storage, 0, 1024).await.unwrap(), expected);
        let written = HttpStorage::open(Options { writable: true, ..options(&short.url()) }).await;
        assert!(written.unwrap_err().to_string().contains("is only read"));
    });
}

/// A store that stopped answering hung the guest's reads for ever, and one that sent a byte now and then did, too.
#[test]
fn a_server_that_is_silent_or_slow_for_good_gives_an_error_within_the_deadline() {
    let stuck = Arc::new(AtomicBool::new(false));
    for fault in [
        |_: &Request| Reply::Silence,
        |asked: &Request| match asked.part() {
            Reply::Bytes(bytes) => Reply::Slowly(bytes, Duration::from_millis(200)),
            other => other,
        },
    ] {
        let asked_to_be = Arc::clone(&stuck);
        asked_to_be.store(false, Ordering::Relaxed);
        let server =
            Server::start(
                move |asked| if asked_to_be.load(Ordering::Relaxed) { fault(asked) } else { asked.part() },
            );
        let deadline = Duration::from_secs(2);
        run(async {
            let options = Options { remote_timeout: Some(deadline), ..options(&server.url()) };
            let storage = HttpStorage::open(options).await.unwrap();
            stuck.store(true, Ordering::Relaxed);
            let began = Instant::now();
            let error = read(&storage, FAR, 5000).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
            assert!(error.to_string().contains("within 2 s (remote-timeout)"), "{error}");
            assert!(began.elapsed() >= deadline && began.elapsed() < deadline * 30, "{:?}", began.elapsed());
            stuck.store(false, Ordering::Relaxed);
            assert_eq!(read(&storage, FAR, 5000).await.unwrap(), content(FAR, 5000));
        });
    }
}

#[test]
fn redirects_are_followed_to_their_end_remembered_and_bounded() {
    let server = Server::start(|asked| match asked.path.as_str() {
        "/disk" => Reply::new("302 Found", "Location: /a\r\nContent-Length: 0\r\n", b""),
        "/a" => Reply::new("307 T", "Location: b?signed=1\r\nContent-Length: 0\r\n", b""),
        // What was signed ends.
        "/b?signed=1" if asked.number == 4 => Reply::status("403 Expired"),
        "/b?signed=1" => asked.part(),
        "/to-a-file" => Reply::new("302 Found", "Location: file:///etc/passwd\r\n", b""),
        _ => Reply::new("302 Found", &format!("Location: {}x\r\nContent-Length: 0\r\n", asked.path), b""),
    });
    run(async {
        let storage = open(&server.url()).await.unwrap();
        for at in [1, 2, 3, 4] {
            assert_eq!(read(&storage, at << 20, 5000).await.unwrap(), content(at << 20, 5000));
        }
        let base = server.url().replace("/disk", "");
        let endless = open(&format!("{base}/endless")).await.unwrap_err().to_string();
        assert!(endless.contains("leads to 5 other places"), "{endless}");
        let elsewhere = open(&format!("{base}/to-a-file")).await.unwrap_err().to_string();
        assert!(
            elsewhere.contains("it redirects to file:, and only http and https are followed"),
            "{elsewhere}"
        );
    });
    assert_eq!(server.connections(), 3, "connections are used again");
}

#[test]
fn credentials_go_to_the_server_that_was_named_and_are_in_no_message() {
    let other = Server::start(|asked| match (asked.field("authorization"), asked.field("cookie")) {
        (None, None) => asked.part(),
        _ => Reply::status("418 Credentials of another server"),
    });
    let location = format!("Location: {}\r\nContent-Length: 0\r\n", other.url());
    let server = Server::start(move |asked| match (asked.field("authorization"), asked.field("cookie")) {
        (Some("Basic dXNlcjpodXNo"), Some("c=quiet")) if asked.path == "/disk" => {
            Reply::new("302 Found", &location, b"")
        }
        (Some("Basic dXNlcjpodXNo"), _) => Reply::status("403 No"),
        _ => Reply::status("401 Who"),
    });
    let secret = |text: &str| Secret::copy_of(text.as_bytes());
    let authorize = Arc::new(Fixed::new(Some(secret("c=quiet")), Some(("user", &secret("hush")))));
    run(async {
        let with = |url: &str| Options { authorize: authorize.clone(), ..options(url) };
        let storage = HttpStorage::open(with(&server.url())).await.unwrap();
        assert_eq!(read(&storage, FAR, 5000).await.unwrap(), content(FAR, 5000));
        let refused = HttpStorage::open(with(&format!("{}?sig=quiet", server.url()))).await.unwrap_err();
        for shown in [
            format!("{storage:?}"),
            refused.to_string(),
            format!("{refused:?}"),
            format!("{:?}", with("http://h")),
        ] {
            for credential in ["hush", "quiet", "dXNlcjpodXNo"] {
                assert!(!shown.contains(credential), "{shown}");
            }
        }
    });
    let unknown = run(open(&server.url())).unwrap_err().to_string();
    assert!(unknown.contains("answers 401 (it wants a user and a password"), "{unknown}");
}

/// Every request of a hundred has some fault, at sixteen at a time, and none gives a wrong byte.
#[test]
fn faults_all_the_time_cost_time_and_no_byte() {
    let server = Server::start(|asked| match asked.number % 7 {
        1 => Reply::status("503 Slow Down"),
        2 => asked.part().cut_after(100),
        4 => Reply::Cut(Vec::new()),
        5 if asked.number > 7 => Reply::status("502 Bad Gateway"),
        _ => asked.part(),
    });
    run(async {
        let options = Options { readahead: 64 << 10, ..options(&server.url()) };
        let storage = HttpStorage::open(options).await.unwrap();
        let reads = (0..100_u64).map(|at| {
            let (storage, offset) = (&storage, at * 83_886 % (SIZE - 5000));
            async move { assert_eq!(read(storage, offset, 5000).await.unwrap(), content(offset, 5000)) }
        });
        join_all(reads).await;
        assert_eq!(read(&storage, 0, SIZE as usize).await.unwrap(), content(0, SIZE as usize));
    });
}

#[test]
fn short_reads_one_after_the_other_are_few_requests() {
    let counted = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&counted);
    let server = Server::start(move |asked| {
        count.fetch_add(1, Ordering::Relaxed);
        asked.part()
    });
    run(async {
        let options = Options { readahead: 256 << 10, ..options(&server.url()) };
        let storage = HttpStorage::open(options).await.unwrap();
        let mut whole = Vec::new();
        for at in 0..(1 << 20) / 4096 {
            whole.extend(read(&storage, at * 4096, 4096).await.unwrap());
        }
        assert!(whole == content(0, 1 << 20));
    });
    // The first 64 KiB, then pieces of 64 KiB, that grow to a quarter of what was read.
    assert_eq!(counted.load(Ordering::Relaxed), 11);
    assert_eq!(server.connections(), 1);
}

#[test]
fn nobody_at_the_port_is_an_error_at_once_when_opening() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let began = Instant::now();
    let error = run(open(&format!("http://127.0.0.1:{port}/x"))).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot connect to http://127.0.0.1:{port}")), "{error}");
    assert!(began.elapsed() < Duration::from_secs(60));
}
