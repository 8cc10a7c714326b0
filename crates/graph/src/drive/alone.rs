//! A drive that names storage and no format (`driver=nbd,server.host=...`): the raw disk that the storage holds, as QEMU has it.

use super::tree::{DriveError, Entry, OptionTree};
use crate::drivers::{StorageDriver, StorageKind, over_disk, storage};

/// Options of every file that its image has not, beside those of its driver.
const OF_FILES: [&str; 2] = ["filename", "locking"];

/// Groups of options of `rbd`.
const RBD_GROUPS: [&str; 3] = ["server", "encrypt", "auth-client-required"];

impl OptionTree {
    /// The same drive with its format said: raw, where `driver` is one of storage. What is the storage's stands under `file` then.
    pub(crate) fn with_format(self) -> Result<Self, DriveError> {
        let Some(driver) = self.value("driver").as_deref().and_then(storage) else { return Ok(self) };
        let mut tree = self.with_name_for(driver)?;
        if tree.is_over_disk() {
            return Ok(tree);
        }
        let specs = driver.specs();
        let is_own = |name: &str| {
            driver.name == "rbd" && name.split('.').next().is_some_and(|group| RBD_GROUPS.contains(&group))
                || OF_FILES.contains(&name)
                || specs.iter().any(|spec| spec.is_called(name))
        };
        let moved: Vec<_> = tree.names().filter(|name| is_own(name)).map(str::to_owned).collect();
        let mut file = Self::of([("driver", Entry::Value(driver.name.into()))]);
        for name in moved {
            if let Some(entry) = tree.take(&name) {
                file.insert_plain(&name, entry).map_err(|()| DriveError::Twice { key: name })?;
            }
        }
        tree.entries.insert("driver".to_owned(), Entry::Value("raw".into()));
        tree.insert_plain("file", Entry::Tree(file))
            .map_err(|()| DriveError::Twice { key: "file".to_owned() })?;
        Ok(tree)
    }

    /// Whether it is a driver of storage over a file, put over a disk: a filter.
    pub(crate) fn is_over_disk(&self) -> bool {
        let driver = self.value("driver").as_deref().and_then(storage);
        let driver = driver.filter(|driver| over_disk(driver.name).is_some());
        let Some(StorageKind::Over(over)) = driver.map(|driver| &driver.kind) else { return false };
        match self.entries.get(over.child) {
            Some(Entry::Tree(below)) => below.value("driver").is_some_and(|name| storage(&name).is_none()),
            _ => false,
        }
    }

    /// A name of a file that is given beside options of a `driver` over another file (qemu-io's `open -o driver=blkdebug PATH`), put where it
    /// belongs: it is the name of that, or has the driver's prefix.
    fn with_name_for(mut self, driver: &StorageDriver) -> Result<Self, DriveError> {
        let StorageKind::Over(over) = &driver.kind else { return Ok(self) };
        match self.entries.get("file") {
            Some(Entry::Tree(file)) if over.child != "file" && file.names().eq(["filename"]) => {}
            _ => return Ok(self),
        }
        let Some(Entry::Tree(mut file)) = self.take("file") else { return Ok(self) };
        let Some(Entry::Value(name)) = file.take("filename") else { return Ok(self) };
        let text = name.to_string_lossy();
        let has_prefix = driver.prefixes.iter().any(|prefix| text.starts_with(prefix));
        let meant = (over.options_of)(&text).ok().filter(|_| has_prefix);
        let meant = meant.unwrap_or_else(|| {
            Self::of([(over.child, Entry::Tree(Self::of([("filename", Entry::Value(name.clone()))])))])
        });
        for (key, entry) in meant {
            match entry {
                Entry::Tree(group) => {
                    for (member, entry) in group {
                        self.insert(&format!("{key}.{member}"), entry)?;
                    }
                }
                other => self.insert(&key, other)?,
            }
        }
        Ok(self)
    }

    /// A drive whose file these options describe.
    pub(crate) fn below_file(self) -> Result<Self, DriveError> {
        Ok(Self::of([("file", Entry::Tree(self))]))
    }

    /// A format's options beside the name of its file: the file is below the format.
    pub(crate) fn with_name_below(mut self) -> Self {
        if !self.entries.contains_key("file")
            && let Some(name) = self.take("filename")
        {
            self.entries.insert("file".to_owned(), Entry::Tree(Self::of([("filename", name)])));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use crate::drive::parse_drive;
    use crate::options::DiskOptions;

    fn options(drive: &str) -> Result<DiskOptions, String> {
        let tree = parse_drive(OsStr::new(drive), |_| false).map_err(|error| error.to_string())?;
        DiskOptions::of_tree(tree).map_err(|error| error.to_string())
    }

    #[test]
    fn storage_alone_is_a_raw_disk_on_it() {
        for (alone, whole) in [
            (
                "driver=nbd,server.host=h,server.port=7,export=e,cache.direct=on",
                "driver=raw,file.driver=nbd,file.server.host=h,file.server.port=7,file.export=e,cache.direct=on",
            ),
            (
                "driver=nbd,host=h,port=7,tls-creds=t",
                "driver=raw,file.driver=nbd,file.server.host=h,file.server.port=7,file.tls-creds=t",
            ),
            ("driver=nbd,path=/s", "driver=raw,file.driver=nbd,file.server.path=/s"),
            // Older names of QEMU.
            ("driver=raw,file.driver=nbd,file.path=/s", "driver=raw,file.driver=nbd,file.server.path=/s"),
            (
                r#"json:{"driver":"raw","file":{"driver":"nbd","host":"h","port":"7"}}"#,
                "driver=raw,file.driver=nbd,file.server.host=h,file.server.port=7",
            ),
            ("driver=file,filename=x,read-only=on", "driver=raw,file.driver=file,file=x,read-only=on"),
            (
                r#"json:{"driver":"nbd","server":{"type":"unix","path":"/s"}}"#,
                "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path=/s",
            ),
            // A name beside the options of a driver over a file.
            ("driver=blkdebug,file=x", "driver=raw,file.driver=blkdebug,file.image.filename=x"),
            (
                "driver=blkdebug,image.driver=file,file=blkdebug:c:x",
                "driver=raw,file.driver=blkdebug,file.config=c,file.image.driver=file,file.image.filename=x",
            ),
        ] {
            assert_eq!(options(alone).unwrap().layer, options(whole).unwrap().layer, "{alone}");
        }
        // Over a disk it is a filter.
        for drive in [
            "driver=blkdebug,image.driver=qcow2,file=x",
            "driver=blkdebug,image.driver=qcow2,file=blkdebug::x",
            "driver=blkdebug,image.driver=qcow2,image.filename=x",
            "driver=blkdebug,image.driver=qcow2,image.file.filename=x",
        ] {
            let found = options(drive).unwrap();
            assert_eq!(found.layer, options("driver=qcow2,file=x").unwrap().layer, "{drive}");
            assert!(found.filters.len() == 1 && found.filters[0].driver.name == "blkdebug", "{drive}");
        }
        assert!(options("driver=nbd,host=h,server.host=i").unwrap_err().contains("file.host"));
        assert!(options("driver=nbd,host=h,file=x").unwrap_err().contains("file"));
        assert!(options("driver=nbd,host=h,cluster-size=3").is_err());
    }
}
