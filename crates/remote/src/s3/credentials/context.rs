//! What reqsign asks this process for: variables, files, servers, programs.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST};
use memory::IoBytes;
use net::tls::ClientCredentials;
use parking_lot::Mutex;
use reqsign_core::{CommandExecute, CommandOutput, Context, Env, Error, FileRead, HttpSend, Result};
use wire::http::{Fields, Scheme, Url};

use crate::http::{Client, ClientOptions, Fixed, Sent};
use crate::s3::known::Environment;

/// Bytes of a file, of an answer and of a program's output at most.
const BYTES_MAX: u64 = 1 << 20;
/// How long a service of the cloud may be silent, and how long a request to it may take with all its attempts.
const TIMEOUTS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(20));
/// The same of metadata services, which are on the same machine or nowhere.
const TIMEOUTS_NEAR: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));
/// How long a program may take.
const PROGRAM_WITHIN: Duration = Duration::from_secs(60);
/// Google's name of its metadata service.
const METADATA_HOST: &str = "metadata.google.internal";

/// Files that were read for credentials.
static FILES_READ: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The files that credentials were read from so far: they may have to be read again, when those end.
pub fn files_read() -> Vec<PathBuf> {
    FILES_READ.lock().clone()
}

/// What reqsign asks, answered for `environment`.
pub(super) fn context(environment: Environment) -> Context {
    let servers = Servers { environment: environment.clone() };
    Context::new()
        .with_env(Variables(environment))
        .with_file_read(Files)
        .with_http_send(servers)
        .with_command_execute(Programs)
}

/// What stays on its loop, although reqsign's futures could go elsewhere.
fn on_this_loop<T: Send + 'static>(work: impl Future<Output = T> + 'static) -> reactor::Task<T> {
    reactor::spawn(work)
}

/// Variables. An empty one counts as missing.
#[derive(Debug)]
struct Variables(Environment);

/// Variables that a provider takes from the list of all.
const LISTED: [&str; 25] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_REGION",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_STS_REGIONAL_ENDPOINTS",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_AUTHORITY_HOST",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_IMDS_ENDPOINT",
    "AZURE_MSI_RES_ID",
    "AZURE_MSI_RESOURCE_ID",
    "AZURE_MSI_SECRET",
    "AZURE_OBJECT_ID",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_BEARER_TOKEN",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_TENANT_ID",
    "AZURE_TENANT_NAME",
];

impl Env for Variables {
    fn var(&self, key: &str) -> Option<String> {
        let own = self.0.get(&[key]);
        match key {
            // The names that Azure's tool has for them.
            "AZURE_STORAGE_ACCOUNT_NAME" => own.or_else(|| self.0.get(&["AZURE_STORAGE_ACCOUNT"])),
            "AZURE_STORAGE_ACCOUNT_KEY" => own.or_else(|| self.0.get(&["AZURE_STORAGE_KEY"])),
            "AZURE_STORAGE_SAS_TOKEN" => own.map(|token| token.trim_start_matches('?').to_owned()),
            _ => own,
        }
    }

    fn vars(&self) -> HashMap<String, String> {
        LISTED.iter().filter_map(|name| Some(((*name).to_owned(), self.var(name)?))).collect()
    }

    fn home_dir(&self) -> Option<PathBuf> {
        self.0.get(&["HOME"]).map(PathBuf::from)
    }
}

#[derive(Debug)]
struct Files;

impl FileRead for Files {
    async fn file_read(&self, path: &str) -> Result<Vec<u8>> {
        let path = PathBuf::from(path);
        let shown = path.display().to_string();
        let read = on_this_loop(reactor::blocking(move || read(&path))).await;
        read.map_err(|error| Error::config_invalid(format!("{shown}: {error}")))
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::other(format!("it has more than {BYTES_MAX} bytes")));
    }
    let path = std::path::absolute(path)?;
    let mut files = FILES_READ.lock();
    if !files.contains(&path) {
        files.push(path);
    }
    Ok(bytes)
}

/// Servers, over our own connections: a proxy is used, and a server in its sandbox is confined as for disks.
#[derive(Debug)]
struct Servers {
    environment: Environment,
}

impl HttpSend for Servers {
    async fn http_send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        let url = self.url(&request.uri().to_string())?;
        on_this_loop(send(request, url)).await
    }
}

impl Servers {
    /// Where a request goes. The variables are those of AWS's tools.
    fn url(&self, uri: &str) -> Result<Url> {
        let other = |variable: &str| {
            let (_, rest) = uri.split_once("://")?;
            let target = rest.find(['/', '?']).map_or("/", |at| rest.get(at..).unwrap_or("/"));
            Some(self.environment.get(&[variable])?.trim_end_matches('/').to_owned() + target)
        };
        let uri = match uri {
            _ if uri.starts_with("https://sts.") => other("AWS_ENDPOINT_URL_STS"),
            _ if uri.starts_with("https://portal.sso.") => other("AWS_ENDPOINT_URL_SSO"),
            _ => None,
        }
        .unwrap_or_else(|| uri.to_owned());
        Url::parse(&uri).map_err(|allowed| {
            Error::config_invalid(format!("{}; allowed: {allowed}", wire::http::shown(&uri)))
        })
    }
}

async fn send(request: http::Request<Bytes>, url: Url) -> Result<http::Response<Bytes>> {
    let unsent = |reason: String| Error::unexpected(reason);
    let method = match request.method().as_str() {
        "GET" => "GET",
        "PUT" => "PUT",
        "POST" => "POST",
        method => return Err(unsent(format!("{method} is no method of a request for credentials"))),
    };
    let mut fields = Fields::default();
    for (name, value) in request.headers() {
        // These two are the connection's to say.
        if name != CONTENT_LENGTH && name != HOST {
            let value = value.to_str().map_err(|_| unsent(format!("{name} is no text")))?;
            fields.add(name.as_str(), value).map_err(|error| unsent(error.to_string()))?;
        }
    }
    let tls = match url.origin().scheme {
        Scheme::Http => None,
        Scheme::Https => {
            let read = reactor::blocking(ClientCredentials::of_machine).await;
            Some(read.map_err(|error| unsent(error.to_string()))?)
        }
    };
    let (timeout, remote_timeout) = if is_near(&url.origin().host) { TIMEOUTS_NEAR } else { TIMEOUTS };
    let (authorize, remote_timeout) = (Arc::new(Fixed::default()), Some(remote_timeout));
    let options = ClientOptions { url: url.clone(), tls, authorize, timeout, remote_timeout };
    let client = Client::new(options).map_err(|error| unsent(error.to_string()))?;
    let body = IoBytes::copy_from(request.body());
    let sent = Sent { method, url: &url, fields, body, answer_bytes_max: BYTES_MAX };
    let (status, body) = match client.send(&sent).await {
        Ok(reply) => (200, reply.body),
        Err(crate::http::Error::Refused { status, words, .. }) => (status, words.into_bytes()),
        Err(error) => return Err(unsent(error.to_string())),
    };
    let answer = http::Response::builder().status(status).body(Bytes::from(body));
    answer.map_err(|error| unsent(error.to_string()))
}

/// Whether it is on this machine or on its link.
fn is_near(host: &str) -> bool {
    match host.parse() {
        Ok(IpAddr::V4(address)) => address.is_link_local() || address.is_loopback(),
        Ok(IpAddr::V6(address)) => address.is_unicast_link_local() || address.is_loopback(),
        Err(_) => host == METADATA_HOST,
    }
}

#[derive(Debug)]
struct Programs;

impl CommandExecute for Programs {
    async fn command_execute<'a>(&'a self, program: &'a str, args: &'a [&'a str]) -> Result<CommandOutput> {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let ran = on_this_loop(reactor::blocking(move || run(&mut command))).await;
        ran.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Error::config_invalid(format!(
                "{program} cannot be run ({error}); a server in its sandbox runs no programs: --sandbox off"
            )),
            _ => Error::config_invalid(format!("{program}: {error}")),
        })
    }
}

/// Runs it to its end, and no longer than it may.
fn run(command: &mut Command) -> io::Result<CommandOutput> {
    let mut child = command.spawn()?;
    let output = child.stdout.take();
    let reading = std::thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        let read = output.map_or(Ok(0), |output| output.take(BYTES_MAX).read_to_end(&mut bytes));
        read.map(|_| bytes)
    })?;
    let until = std::time::Instant::now() + PROGRAM_WITHIN;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if std::time::Instant::now() >= until => {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::other(format!("it took longer than {} s", PROGRAM_WITHIN.as_secs())));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let stdout = reading.join().map_err(|_| io::Error::other("its output was not read"))??;
    // What it says besides may have credentials.
    Ok(CommandOutput { status: status.code().unwrap_or(-1), stdout, stderr: Vec::new() })
}
