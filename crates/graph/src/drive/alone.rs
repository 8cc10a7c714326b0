//! A drive that names storage and no format (`driver=nbd,server.host=...`): the raw disk that the storage holds, as QEMU has it.

use super::{DriveError, Entry, OptionTree};
use crate::drivers::storage;

/// Options of every file that its image has not, beside those of its driver.
const OF_FILES: [&str; 2] = ["filename", "locking"];

impl OptionTree {
    /// The same drive with its format said: raw, where `driver` is one of storage. What is the storage's stands under `file` then.
    pub(crate) fn with_format(mut self) -> Result<Self, DriveError> {
        let Some(Entry::Value(name)) = self.entries.get("driver") else { return Ok(self) };
        let Some(driver) = name.to_str().and_then(storage) else { return Ok(self) };
        let specs = driver.specs();
        let is_own = |name: &str| {
            driver.name == "rbd" && name.starts_with("server.")
                || OF_FILES.contains(&name)
                || specs.iter().any(|spec| spec.is_called(name))
        };
        let moved: Vec<_> = self.names().filter(|name| is_own(name)).map(str::to_owned).collect();
        let mut file = Self::of([("driver", Entry::Value(driver.name.into()))]);
        for name in moved {
            if let Some(entry) = self.take(&name) {
                file.insert_plain(&name, entry).map_err(|()| DriveError::Twice { key: name })?;
            }
        }
        self.entries.insert("driver".to_owned(), Entry::Value("raw".into()));
        self.insert_plain("file", Entry::Tree(file))
            .map_err(|()| DriveError::Twice { key: "file".to_owned() })?;
        Ok(self)
    }

    /// A drive whose file these options describe.
    pub(crate) fn below_file(self) -> Result<Self, DriveError> {
        Ok(Self::of([("file", Entry::Tree(self))]))
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
        ] {
            assert_eq!(options(alone).unwrap().layer, options(whole).unwrap().layer, "{alone}");
        }
        assert!(options("driver=nbd,host=h,server.host=i").unwrap_err().contains("file.host"));
        assert!(options("driver=nbd,host=h,file=x").unwrap_err().contains("file"));
        assert!(options("driver=nbd,host=h,cluster-size=3").is_err());
    }
}
