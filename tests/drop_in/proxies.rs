//! `proxy-username` and `proxy-password-secret` of http: a proxy that asks for a password gets the file's own, as from QEMU's programs.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use black_box::{Run, Scratch};

use super::ours;

/// `me:hush`, as a client sends it.
const LOGIN: &str = "Basic bWU6aHVzaA==";
const BYTES: usize = 64 << 10;

/// Its first line, and the login that it shows.
type Request = (String, Option<String>);

/// A proxy that has one file itself, for clients that show [`LOGIN`]. Ends with the process.
struct Proxy {
    port: u16,
    /// The first line and the login of each request.
    asked: Arc<Mutex<Vec<Request>>>,
}

impl Proxy {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let asked: Arc<Mutex<Vec<Request>>> = Arc::default();
        let of_all = Arc::clone(&asked);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, asked) = (client.expect("a client"), Arc::clone(&of_all));
                std::thread::spawn(move || drop(answer(client, &asked)));
            }
        });
        Self { port, asked }
    }
}

fn answer(client: TcpStream, asked: &Mutex<Vec<Request>>) -> std::io::Result<()> {
    let (mut reader, mut writer) = (BufReader::new(client.try_clone()?), client);
    loop {
        let (mut first, mut login, mut range) = (String::new(), None, None);
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 || line == "\r\n" {
                break;
            }
            let (name, value) = line.trim_end().split_once(": ").unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "proxy-authorization" => login = Some(value.to_owned()),
                "range" => range = value.strip_prefix("bytes=").map(str::to_owned),
                _ => {}
            }
        }
        let is_known = login.as_deref() == Some(LOGIN);
        asked.lock().expect("a lock").push((first.clone(), login));
        if !is_known {
            let head = "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"p\"\r\nContent-Length: 0\r\n\r\n";
            writer.write_all(head.as_bytes())?;
            continue;
        }
        let (start, end) = match range.as_deref().and_then(|range| range.split_once('-')) {
            Some((start, end)) => {
                (start.parse().unwrap_or(0), end.parse().unwrap_or(BYTES - 1).min(BYTES - 1))
            }
            None => (0, BYTES - 1),
        };
        let (status, part) = match range {
            Some(_) => ("206 Partial Content", format!("Content-Range: bytes {start}-{end}/{BYTES}\r\n")),
            None => ("200 OK", String::new()),
        };
        let len = end + 1 - start;
        let head = format!(
            "HTTP/1.1 {status}\r\nAccept-Ranges: bytes\r\nETag: \"1\"\r\n{part}Content-Length: {len}\r\n\r\n"
        );
        writer.write_all(head.as_bytes())?;
        if !first.starts_with("HEAD") {
            writer.write_all(&vec![7; len])?;
        }
    }
}

/// What `program` copies through `proxy`, or its message.
fn copied(program: &Path, proxy: &Proxy, login: &str) -> Result<Vec<u8>, String> {
    let scratch = Scratch::new();
    std::fs::write(scratch.file("password"), "hush").expect("a file");
    let secret = format!("secret,id=s,file={}", scratch.name("password"));
    let drive = format!("driver=raw,file.driver=http,file.url=http://disk.example/d{login}");
    let outcome = Run::new(program)
        .args(["convert", "--object", &secret, "--image-opts", &drive, "-O", "raw", "copy"])
        .env("http_proxy", format!("http://127.0.0.1:{}", proxy.port))
        .current_dir(scratch.path())
        .outcome();
    match outcome.status.success() {
        true => Ok(std::fs::read(scratch.file("copy")).expect("a copy")),
        false => Err(outcome.stderr),
    }
}

#[test]
fn a_proxy_is_shown_the_user_and_password_of_the_file() {
    for program in [Path::new("qemu-img"), &ours("qemu-img")] {
        let proxy = Proxy::start();
        let login = ",file.proxy-username=me,file.proxy-password-secret=s";
        assert!(copied(program, &proxy, login).expect("a copy") == vec![7; BYTES], "{program:?}");
        let asked = proxy.asked.lock().expect("a lock").clone();
        for (first, login) in asked {
            assert!(first.contains(" http://disk.example/d "), "{first}");
            // curl asks without it first.
            assert!(login.is_none_or(|login| login == LOGIN), "{program:?}");
        }
    }
}

#[test]
fn without_the_right_password_the_message_names_the_proxy() {
    let (program, proxy) = (ours("qemu-img"), Proxy::start());
    for login in ["", ",file.proxy-username=me", ",file.proxy-username=you,file.proxy-password-secret=s"] {
        let message = copied(&program, &proxy, login).unwrap_err();
        assert!(message.contains("proxy") && !message.contains("hush"), "{message}");
    }
    let message = copied(&program, &proxy, ",file.proxy-password-secret=s").unwrap_err();
    assert!(message.contains("give proxy-username with it"), "{message}");
}
