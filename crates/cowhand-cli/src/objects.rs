//! `--object`: passwords that the command's images need, certificates for encrypted connections to their servers, and throttle groups.

mod throttle_group;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Once;

use catalog::{TlsCredentials, tls_terms};
use graph::drive::split_commas;
use graph::{SecretOptions, Secrets};
use luks::Secret;
use net::tls::ClientFiles;
use tool::failure::{Failure, warn};

/// Objects of QEMU that hold secrets and are not here.
const REFUSED: [(&str, &str); 2] = [
    (
        "tls-creds-anon",
        "TLS without certificates lets each machine on the way read along; give tls-creds-x509",
    ),
    ("tls-creds-psk", "shared keys are not supported for TLS; give tls-creds-x509"),
];

/// Where systemd puts the credentials of a unit: passwords, which are looked for by id.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Variables in which keys of object stores are, or their files' names.
const STORE_KEYS: [&str; 11] = [
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_BEARER_TOKEN",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "GOOGLE_APPLICATION_CREDENTIALS",
];

/// Adds all of them to the process's secrets and credentials.
///
/// # Errors
/// For the first that is of another type, or cannot be read. Its text is not shown: it may hold a password.
pub fn add_all(objects: &[OsString]) -> Result<(), Failure> {
    // Those of services are fetched when a store is opened.
    remote::s3::when_read(|| {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            if let Err(failure) = leave_no_core_dump() {
                warn(&failure.in_one_line());
            }
        });
    });
    if !objects.is_empty() || std::env::var_os(CREDENTIALS).is_some() || has_keys_of_a_store() {
        leave_no_core_dump()?;
    }
    objects.iter().try_for_each(|object| add(object))
}

/// Whether keys of object stores are in the environment, or in a file from which drives take them.
fn has_keys_of_a_store() -> bool {
    let is_given = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    STORE_KEYS.iter().any(is_given)
        || home().is_some_and(|home| home.join(".aws").join("credentials").exists())
}

/// Keys and passwords stay in memory while disks are open, and must not be in a file when the program crashes.
///
/// # Errors
/// When the system does not let us.
pub fn leave_no_core_dump() -> Result<(), Failure> {
    memory::secret::leave_no_core_dump()
        .map_err(|error| Failure::because("cannot keep passwords out of core dumps", &error))
}

/// Says, once, if passwords or keys could not be locked in memory. They are used all the same.
pub fn warn_of_swap() {
    static SAID: Once = Once::new();
    if let Some(why) = luks::why_unlocked() {
        SAID.call_once(|| {
            warn(&format!(
                "passwords and keys are not locked in memory ({why}): they may be swapped; allow more with ulimit -l, or LimitMEMLOCK= of \
                 a unit"
            ));
        });
    }
}

fn add(object: &OsStr) -> Result<(), Failure> {
    let mut parts = split_commas(object.as_bytes());
    let kind = parts.next().unwrap_or_default();
    let kind = kind.strip_prefix(b"qom-type=").unwrap_or(&kind);
    let kind = String::from_utf8_lossy(kind);
    match &*kind {
        "secret" | "secret_keyring" => add_secret(&kind, parts),
        "tls-creds-x509" => add_credentials(parts),
        "throttle-group" => throttle_group::add(parts),
        kind => {
            let refused = REFUSED.iter().find(|(name, _)| *name == kind);
            let reason = refused.map_or(
                "allowed: secret,id=ID,file=PATH|data=TEXT[,format=raw|base64], secret_keyring,id=ID,serial=NUMBER, \
                 tls-creds-x509,id=ID,endpoint=client,dir=DIR and throttle-group,id=ID,limits.iops-total=N,...",
                |(_, why)| why,
            );
            Err(Failure::new(format!("--object {kind}: {reason}")))
        }
    }
}

/// The certificates of a client.
fn add_credentials(parts: impl Iterator<Item = Vec<u8>>) -> Result<(), Failure> {
    let refused = |what: String| Failure::new(format!("--object tls-creds-x509: {what}"));
    let (mut id, mut directory, mut verify_peer) = (None, None, true);
    let (mut priority, mut password, mut checks_own) = (None, None, false);
    for part in parts {
        let part = String::from_utf8(part).map_err(|_| refused("a part is not UTF-8".to_owned()))?;
        let (name, value) = part.split_once('=').unwrap_or((&part, ""));
        match (name, value) {
            ("id", value) => id = Some(value.to_owned()),
            ("dir", value) => directory = Some(PathBuf::from(value)),
            ("endpoint", "client") => {}
            ("endpoint", other) => {
                return Err(refused(format!("endpoint is {other:?}; a tool is a client: endpoint=client")));
            }
            ("verify-peer", value) => verify_peer = switch(name, value).map_err(refused)?,
            ("sanity-check", value) => checks_own = switch(name, value).map_err(refused)?,
            ("priority", value) => priority = Some(value.to_owned()),
            ("passwordid", value) => password = Some(value.to_owned()),
            (name, _) => {
                let allowed = "id, dir, endpoint, verify-peer, priority, passwordid, sanity-check";
                return Err(refused(format!("unknown option {name:?}; allowed: {allowed}")));
            }
        }
    }
    let id = id.filter(|id| !id.is_empty()).ok_or_else(|| refused("it has no id=ID".to_owned()))?;
    let directory = directory.ok_or_else(|| refused("it has no dir=DIR".to_owned()))?;
    let failed = |error| Failure::because("--object", &error);
    let secrets = Secrets::default();
    let terms = tls_terms(priority.as_deref(), password.as_deref(), checks_own, &secrets).map_err(failed)?;
    let files = ClientFiles { terms, ..ClientFiles::of_directory(&directory, verify_peer) };
    TlsCredentials::default().add(&id, &files).map_err(failed)
}

/// A switch called `name`.
fn switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" | "yes" | "true" | "y" => Ok(true),
        "off" | "no" | "false" | "n" => Ok(false),
        other => Err(format!("{name} is {other:?}; allowed: on, off")),
    }
}

fn add_secret(kind: &str, parts: impl Iterator<Item = Vec<u8>>) -> Result<(), Failure> {
    let (mut id, mut options) = (None, SecretOptions::default());
    for part in parts {
        set(kind, &part, &mut id, &mut options)?;
    }
    let id = id.ok_or_else(|| Failure::new(format!("--object {kind}: it has no id=ID")))?;
    Secrets::default().add(&id, options).map_err(|error| Failure::because("--object", &error))
}

fn set(kind: &str, part: &[u8], id: &mut Option<String>, options: &mut SecretOptions) -> Result<(), Failure> {
    let equals = part.iter().position(|&byte| byte == b'=');
    let Some((name, value)) = equals.map(|at| (&part[..at], part[at + 1..].to_vec())) else {
        let what = format!("--object {kind}: a part between commas has no value; write NAME=VALUE");
        return Err(Failure::new(what));
    };
    let is_key = kind == "secret_keyring";
    match name {
        b"id" => *id = Some(String::from_utf8_lossy(&value).into_owned()),
        b"serial" if is_key => {
            let serial = str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
            let bad = || {
                Failure::new(format!(
                    "--object {kind}: serial is no number of a key; allowed: 1 to {}",
                    i32::MAX
                ))
            };
            options.serial = Some(serial.filter(|&serial| serial > 0).ok_or_else(bad)?);
        }
        b"data" if !is_key => options.data = Some(Secret::new(value)),
        b"file" if !is_key => options.file = Some(PathBuf::from(OsString::from_vec(value))),
        b"format" => {
            options.base64 = match value.as_slice() {
                b"raw" => false,
                b"base64" => true,
                _ => return Err(Failure::new(format!("--object {kind}: format is neither raw nor base64"))),
            }
        }
        b"keyid" | b"iv" => options.keyid = true,
        name => {
            let name = String::from_utf8_lossy(name);
            let allowed = if is_key { "id, serial, format" } else { "id, data, file, format" };
            return Err(Failure::new(format!(
                "--object {kind}: unknown option {name:?}; allowed: {allowed}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_taken_by_their_type_and_need_an_id() {
        let added = |text: &str| add(OsStr::new(text)).map_err(|failure| failure.to_string());
        assert_eq!(added("qom-type=secret,id=a-secret,data=b,,c"), Ok(()));
        assert_eq!(added("secret,data=b"), Err("--object secret: it has no id=ID".to_owned()));
        for (text, said) in [
            ("iothread,id=a", "--object iothread: allowed: secret"),
            ("tls-creds-psk,id=a,dir=/x", "--object tls-creds-psk: shared keys"),
            ("tls-creds-anon,id=a", "--object tls-creds-anon: TLS without certificates"),
            ("tls-creds-x509,id=a", "it has no dir=DIR"),
            ("tls-creds-x509,dir=/nowhere", "it has no id=ID"),
            ("tls-creds-x509,id=a,dir=/nowhere,endpoint=server", "endpoint=client"),
            ("tls-creds-x509,id=a,dir=/nowhere", "/nowhere/ca-cert.pem"),
            ("tls-creds-x509,id=a,dir=/x,verify-peer=maybe", "allowed: on, off"),
            ("tls-creds-x509,id=a,dir=/x,priority=LEGACY", "priority has \"LEGACY\""),
            ("tls-creds-x509,id=a,dir=/x,sanity-check=maybe", "allowed: on, off"),
            ("tls-creds-x509,id=a,dir=/x,passwordid=nowhere", "nowhere"),
        ] {
            let refused = added(text).unwrap_err();
            assert!(refused.contains(said), "{text}: {refused}");
        }
    }
}
