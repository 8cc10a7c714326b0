//! `rbd`: an image of a Ceph cluster.

use std::any::Any;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use remote::rbd::{Encryption, EncryptionFormat, ImageName, Opening, RbdStorage};
use storage::{IoFuture, Storage};

use super::not_built::prefixes;
use super::remote::{ON_REMOTE_ERROR, OnRemoteError};
use super::store::{remote_timeout, secret, wrong};
use graph::drive::{Entry as Given, OptionTree};
use graph::drivers::{Access, Elsewhere, StorageDriver, StorageKind, Target};
use graph::options::entry::{at, choice_at, first_fixed_of, in_group, read_all};
use graph::options::{Entry, Group, OptionError, Reader};

pub(super) const RBD: StorageDriver = StorageDriver {
    name: "rbd",
    prefixes: prefixes::RBD,
    kind: StorageKind::Elsewhere(Elsewhere {
        specs: || RBD_OPTIONS.iter().map(Entry::spec).collect(),
        options_of,
        shown: remote::rbd::shown,
        read,
        is_within_process: false,
    }),
};

/// Monitors that can be named: clusters have three to seven.
const SERVERS_MAX: usize = 32;
/// Seconds within which a monitor must answer when an image is opened; Ceph's 300 are longer than anybody waits for a prompt.
const CONNECT_TIMEOUT_S: u32 = 30;

/// The options of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rbd {
    /// `pool`.
    pool: Option<String>,
    /// `namespace`.
    namespace: Option<String>,
    /// `image`.
    image: Option<String>,
    /// `conf`.
    conf: Option<PathBuf>,
    /// `snapshot`.
    snapshot: Option<String>,
    /// `user`.
    user: Option<String>,
    /// `key-secret`.
    key_secret: Option<String>,
    /// `auth-client-required`.
    auth: Vec<&'static str>,
    /// `encrypt`, then its `parent`, and so on.
    encryption: Vec<EncryptionOptions>,
    /// `server`.
    servers: Vec<Monitor>,
    /// `remote-timeout`, in seconds; 0 is any time. `None`: what follows from `on_remote_error`.
    remote_timeout_s: Option<u32>,
    /// `on-remote-error`.
    on_remote_error: OnRemoteError,
}

/// A level of encryption of librbd's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncryptionOptions {
    /// `format`.
    format: Option<EncryptionFormat>,
    /// `key-secret`.
    key_secret: Option<String>,
}

/// A monitor of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Monitor {
    /// `server.N.host`.
    host: Option<String>,
    /// `server.N.port`.
    port: Option<String>,
}

/// The driver's part of the table.
pub const RBD_OPTIONS: &[Entry<Rbd>] = &in_group(
    Group::Storage("rbd"),
    [
        Entry::text("pool", at!(Rbd, pool), "the pool").needed(),
        Entry::text("namespace", at!(Rbd, namespace), "a namespace of the pool").default_follows("none"),
        Entry::text("image", at!(Rbd, image), "the image in it").needed(),
        Entry::path("conf", at!(Rbd, conf), "the configuration file; server.0.host, server.0.port and so on name monitors without one")
            .default_follows("CEPH_CONF, or Ceph's places: /etc/ceph/ceph.conf"),
        Entry::text("snapshot", at!(Rbd, snapshot), "a snapshot of the image, which is only read")
            .default_follows("the image as it is"),
        Entry::text("user", at!(Rbd, user), "the user name, without client.").default_follows("admin"),
        Entry::text(
            "key-secret",
            at!(Rbd, key_secret),
            "the secret (--object secret,id=NAME) that holds the user's key, in base64 as Ceph shows it; auth-client-required.0=none and so on say what the client takes; encrypt.format=luks2,encrypt.key-secret=ID opens an image that librbd encrypted (luks, luks2, luks-any; encrypt.parent.format for what it is a clone of)",
        )
        .default_follows("the user's keyring, where the configuration says"),
        Entry::whole(
            "remote-timeout",
            at!(Rbd, remote_timeout_s),
            "seconds within which a request must be answered, all attempts together, or it fails; 0: any time",
        )
        .default_follows("60, or any time with on-remote-error=wait"),
        Entry::choice(
            "on-remote-error",
            choice_at!(Rbd, ON_REMOTE_ERROR, on_remote_error),
            "what requests do while the cluster is away: report has them fail within remote-timeout, wait has them wait for it (with remote-timeout, so long)",
        )
        .default("report"),
    ],
);

/// Formats of encryption.
const FORMATS: [(&str, EncryptionFormat); 3] = [
    ("luks", EncryptionFormat::Luks),
    ("luks2", EncryptionFormat::Luks2),
    ("luks-any", EncryptionFormat::LuksAny),
];

/// Kinds of authentication.
pub const AUTH: &[&str] = &["cephx", "none"];

/// Images that are cloned from each other, each encrypted in its own way.
const LEVELS_MAX: usize = 16;

/// Of `encrypt`, and of each `parent` of it.
const ENCRYPTION: &[Entry<EncryptionOptions>] = &[
    Entry::choice("format", choice_at!(EncryptionOptions, FORMATS, format), "how librbd encrypted the image")
        .needed(),
    Entry::text("key-secret", at!(EncryptionOptions, key_secret), "the secret that holds the passphrase")
        .needed(),
];

/// Of one of `server`.
const MONITOR: &[Entry<Monitor>] = &[
    Entry::text("host", at!(Monitor, host), "name or address of a monitor").needed(),
    Entry::text("port", at!(Monitor, port), "its port").default_follows("Ceph's"),
];

fn options_of(name: &str) -> Result<OptionTree, String> {
    let found = ImageName::parse(name).map_err(|allowed| allowed.to_string())?;
    let ImageName { pool, namespace, image, snapshot, conf, user, monitors, auth } = found;
    let mut tree = OptionTree::default();
    let mut insert = |name: &str, value: &str| match value.is_empty() {
        true => Ok(()),
        false => tree.insert(name, Given::Value(value.into())).map_err(|error| error.to_string()),
    };
    let texts = [("pool", pool), ("namespace", namespace), ("image", image), ("snapshot", snapshot)];
    for (option, value) in texts.into_iter().chain([("conf", conf), ("user", user)]) {
        insert(option, &value)?;
    }
    for (number, kind) in auth.split([',', ';', ' ']).filter(|kind| !kind.is_empty()).enumerate() {
        insert(&format!("auth-client-required.{number}"), kind)?;
    }
    for (number, monitor) in monitors.split([',', ';']).filter(|monitor| !monitor.is_empty()).enumerate() {
        let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let (host, port) = match monitor.rsplit_once(':') {
            Some((host, port)) if is_port(port) && (!host.contains(':') || host.ends_with(']')) => {
                (host, port)
            }
            _ => (monitor, ""),
        };
        insert(&format!("server.{number}.host"), host.trim_start_matches('[').trim_end_matches(']'))?;
        insert(&format!("server.{number}.port"), port)?;
    }
    Ok(tree)
}

fn read(reader: &mut Reader) -> Result<Arc<dyn Target>, OptionError> {
    reader.is_no_path("image");
    let mut rbd = Rbd::default();
    read_all(RBD_OPTIONS, reader, &mut rbd)?;
    reader.gather("server");
    for mut group in reader.list("server", SERVERS_MAX)? {
        let mut monitor = Monitor::default();
        read_all(MONITOR, &mut group, &mut monitor)?;
        if monitor.host.is_none() {
            return Err(group.value("host", "", "it must be given"));
        }
        group.finish(MONITOR.iter().map(|entry| entry.spec().name), &[])?;
        rbd.servers.push(monitor);
    }
    rbd.encryption = encryption(reader)?;
    reader.gather("auth-client-required");
    if let Some(mut kinds) = reader.group("auth-client-required")? {
        for number in 0..AUTH.len() {
            let kind = kinds.choice(&number.to_string(), AUTH)?;
            rbd.auth.extend(kind.and_then(|kind| AUTH.get(kind)));
        }
        kinds.finish(std::iter::empty(), &[])?;
    }
    Ok(Arc::new(rbd))
}

/// `encrypt`, and what stands below it.
fn encryption(reader: &mut Reader) -> Result<Vec<EncryptionOptions>, OptionError> {
    let mut levels: Vec<EncryptionOptions> = Vec::new();
    reader.gather("encrypt");
    let mut next = reader.group("encrypt")?.filter(|group| !group.is_empty());
    while let Some(mut group) = next {
        let mut level = EncryptionOptions::default();
        read_all(ENCRYPTION, &mut group, &mut level)?;
        if level.format.is_none() {
            return Err(group.value("format", "", FORMATS.map(|(name, _)| name).join(", ")));
        }
        if level.key_secret.is_none() {
            return Err(group.value("key-secret", "", "the id of a secret with the passphrase"));
        }
        levels.push(level);
        group.gather("parent");
        next = match levels.len() < LEVELS_MAX {
            true => group.group("parent")?.filter(|group| !group.is_empty()),
            false => None,
        };
        group.finish(ENCRYPTION.iter().map(|entry| entry.spec().name), &[])?;
    }
    Ok(levels)
}

impl Monitor {
    /// As Ceph's `mon_host` has it.
    fn address(&self) -> String {
        let host = self.host.as_deref().unwrap_or_default();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        self.port.as_ref().map_or_else(|| host.clone(), |port| format!("{host}:{port}"))
    }
}

impl Rbd {
    fn opening(&self, access: Access) -> io::Result<Opening> {
        let given = |option: &Option<String>| {
            option
                .clone()
                .filter(|name| !name.is_empty())
                .ok_or_else(|| wrong("driver rbd needs a pool and an image"))
        };
        let (pool, image) = (given(&self.pool)?, given(&self.image)?);
        if access.writable && self.snapshot.is_some() {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "a snapshot is only read"));
        }
        let key = self.key_secret.as_deref().map(secret).transpose()?.map(Arc::new);
        let levels = self.encryption.iter().map(|level| {
            let format = level.format.unwrap_or(EncryptionFormat::LuksAny);
            let passphrase = Arc::new(secret(level.key_secret.as_deref().unwrap_or_default())?);
            Ok(Encryption { format, passphrase })
        });
        let encryption = levels.collect::<io::Result<Vec<_>>>()?;
        // The worker is in another directory.
        let conf = self.conf.as_ref().map(std::path::absolute).transpose()?;
        let conf = conf.map(PathBuf::into_os_string).map(std::ffi::OsString::into_string).transpose();
        Ok(Opening {
            pool,
            namespace: self.namespace.clone().unwrap_or_default(),
            image,
            snapshot: self.snapshot.clone().unwrap_or_default(),
            conf: conf.map_err(|_| wrong("option file.conf is no text"))?.unwrap_or_default(),
            user: self.user.clone().unwrap_or_default(),
            monitors: self.servers.iter().map(Monitor::address).collect::<Vec<_>>().join(","),
            key,
            auth: self.auth.join(";"),
            encryption,
            writable: access.writable,
            uncached: access.direct,
            connect_timeout_s: CONNECT_TIMEOUT_S,
            new_bytes: None,
        })
    }
}

impl Target for Rbd {
    fn name(&self) -> String {
        let [pool, namespace, image, snapshot] = [&self.pool, &self.namespace, &self.image, &self.snapshot]
            .map(|text| text.as_deref().unwrap_or_default());
        remote::rbd::name_of([pool, namespace, image, snapshot])
    }

    fn first_difference(&self, other: &dyn Target) -> Option<String> {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else {
            return Some("file.driver".to_owned());
        };
        let servers = || (self.servers != other.servers).then(|| "file.server".to_owned());
        let encryption = || (self.encryption != other.encryption).then(|| "file.encrypt".to_owned());
        let auth = || (self.auth != other.auth).then(|| "file.auth-client-required".to_owned());
        first_fixed_of(RBD_OPTIONS, self, other).or_else(servers).or_else(encryption).or_else(auth)
    }

    fn is_creatable(&self) -> bool {
        self.snapshot.is_none() && self.encryption.is_empty()
    }

    fn create(&self, bytes: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let access = Access { writable: true, direct: false, no_flush: false };
            Ok(RbdStorage::create(self.opening(access)?, bytes).await?)
        })
    }

    fn open(&self, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>> {
        Box::pin(async move {
            let storage = RbdStorage::open(remote::rbd::Options {
                name: self.name(),
                opening: self.opening(access)?,
                no_flush: access.no_flush,
                remote_timeout: remote_timeout(self.on_remote_error, self.remote_timeout_s),
            });
            Ok(Arc::new(storage.await?) as Arc<dyn Storage>)
        })
    }
}

#[cfg(test)]
mod tests {
    use graph::drivers::target_of;

    /// An image from somewhere named another configuration file, and had the user's key sent to its author's monitors.
    #[test]
    fn an_image_that_is_allowed_is_not_reached_through_another_cluster_or_as_another_user() {
        let target = |name: &str| target_of(name).unwrap().unwrap().1;
        let allowed = target("rbd:p/i:conf=/a");
        assert!(allowed.covers(&*target("rbd:p/i:conf=/a")));
        for found in [
            "rbd:p/i",
            "rbd:p/j:conf=/a",
            "rbd:p/i:conf=/b",
            "rbd:p/i:conf=/a:id=u",
            "rbd:p/i:conf=/a:mon_host=h",
            r"rbd:p/i:conf=/a:auth_supported=cephx\;none",
        ] {
            assert!(!allowed.covers(&*target(found)), "{found}");
        }
        let three = target(r"rbd:p/i:mon_host=h\:6789,[\:\:1]\:3300,g");
        assert_eq!(three.name(), "rbd:p/i");
        assert!(format!("{three:?}").contains("::1") && !three.covers(&*target(r"rbd:p/i:mon_host=h\:6789")));
        assert!(target_of("rbd:p/i:key=hush").unwrap().is_err_and(|said| !said.contains("hush")));
    }
}
