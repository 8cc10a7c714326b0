//! Whether the options of a drive come to what a name alone would open.

use super::{Backing, DiskOptions, FileOptions, LayerOptions};

/// Drivers of filters whose disks can lie in different directories.
const IN_MANY_DIRECTORIES: [&str; 2] = ["quorum", "blkverify"];

impl DiskOptions {
    /// The name that opens the same disk without options, once its format is given; `None` if there is none. What changes neither the
    /// content nor where it lies (caches, node names) does not count. `has_backing`: the image names a backing file.
    pub fn plain_name(&self, has_backing: bool) -> Option<String> {
        let is_plain = self.filters.is_empty() && self.layer.is_plain(has_backing);
        self.layer.file.plain_name().filter(|_| is_plain)
    }

    /// Whether relative names in the image begin at one directory.
    pub fn has_directory(&self) -> bool {
        let many = |name: &str| IN_MANY_DIRECTORIES.contains(&name);
        !self.filters.iter().any(|filter| many(filter.driver.name)) && self.layer.file.has_directory()
    }
}

impl LayerOptions {
    /// Whether nothing but the file says what it holds.
    fn is_plain(&self, has_backing: bool) -> bool {
        let below_is_as_in_image = match &self.backing {
            Backing::AsInImage => true,
            Backing::None => !has_backing,
            Backing::With(below) => !below.file.is_named(),
        };
        below_is_as_in_image
            && self.key_secret.is_none()
            && self.encryption.is_none()
            && self.raw.offset == 0
            && self.raw.size.is_none()
            && !self.luks_header.is_named()
    }
}

impl FileOptions {
    fn plain_name(&self) -> Option<String> {
        if let Some(over) = &self.over {
            return over.by.name_over(&over.below.plain_name()?);
        }
        match self.nested() {
            Some(_) => None,
            None => {
                let shown = self.shown()?.to_string_lossy().into_owned();
                // QEMU's first names of NBD servers mean what its URLs say.
                let is_old = shown.starts_with("nbd:") && !shown.starts_with("nbd://");
                let newer = self.target.as_ref().filter(|_| is_old).map(|target| target.name());
                Some(newer.unwrap_or(shown))
            }
        }
    }

    fn has_directory(&self) -> bool {
        match (&self.over, self.nested()) {
            (Some(over), _) => over.below.has_directory(),
            (None, Some(disk)) => disk.has_directory(),
            (None, None) => true,
        }
    }

    /// The disk that is described in its place.
    fn nested(&self) -> Option<&DiskOptions> {
        self.disk()?.description()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use crate::drive::parse_drive;
    use crate::options::DiskOptions;

    fn options(drive: &str) -> DiskOptions {
        DiskOptions::of_tree(parse_drive(OsStr::new(drive), |_| false).unwrap()).unwrap()
    }

    #[test]
    fn options_come_to_a_name_where_a_name_opens_the_same() {
        let rule = "file.set-state.0.event=read_aio,file.set-state.0.new_state=2";
        for (drive, name) in [
            ("dir/a.qcow2", Some("dir/a.qcow2")),
            ("driver=qcow2,file.driver=file,file.filename=a,cache=none,file.node-name=x", Some("a")),
            ("driver=raw,file=a,offset=512", None),
            ("driver=qcow2,file=a,encrypt.key-secret=s", None),
            ("driver=qcow2,file=a,backing.file=b", None),
            ("driver=qcow2,file=a,backing.l2-cache-size=1M", Some("a")),
            ("blkdebug:rules:a", Some("blkdebug:rules:a")),
            ("driver=qcow2,file.driver=blkdebug,file.image=a", Some("blkdebug::a")),
            (&format!("driver=qcow2,file.driver=blkdebug,file.image=a,{rule}"), None),
            ("driver=nbd,host=h,port=7,export=e", Some("nbd://h:7/e")),
            ("nbd:unix:/s:exportname=e", Some("nbd+unix:///e?socket=/s")),
            ("driver=copy-on-read,file.driver=qcow2,file.file=a", None),
            ("driver=raw,file.driver=raw,file.file=a", None),
        ] {
            assert_eq!(options(drive).plain_name(true).as_deref(), name, "{drive}");
        }
        let without = r#"json:{"driver":"qcow2","file":"a","backing":null}"#;
        assert_eq!(options(without).plain_name(true), None);
        assert_eq!(options(without).plain_name(false).as_deref(), Some("a"));
    }

    #[test]
    fn disks_of_a_quorum_have_no_directory_in_common() {
        let quorum = "driver=quorum,vote-threshold=1,children.0.file=x/a,children.1.file=y/a";
        let below = quorum.replace("driver", "file.driver").replace(",", ",file.");
        assert!(!options(quorum).has_directory());
        assert!(!options(&format!("driver=qcow2,{below}")).has_directory());
        assert!(options("driver=qcow2,file.driver=blkdebug,file.image=x/a").has_directory());
    }
}
