//! Options that are set after they were read: by an argument of a tool, beside what its DRIVE says.
//!
//! Other values may follow from an option: the cache mode of a file, and of the backing files, is that of the
//! image unless they have their own. A setter changes what follows as well, and leaves values that were given
//! explicitly. What can be derived where it is used has no setter (`pass-discard-request`).

use qcow2::Prefetch;

use super::layer::{Backing, Inherited, LayerOptions};
use super::{Aio, DiskOptions, FileOptions};
use crate::cache_mode::CacheMode;

impl DiskOptions {
    /// Opens every image and file of the disk in this cache mode, unless the options of that image or file say another.
    pub fn set_cache(&mut self, mode: CacheMode) {
        self.each_disk(&|layer| layer.set(&mut |layer| layer.cache = mode));
    }

    /// Likewise how requests reach the kernel.
    pub fn set_aio(&mut self, aio: Aio) {
        self.each_disk(&|layer| layer.set(&mut |layer| layer.aio = Some(aio)));
    }

    /// Reads every image of the disk without regard for other writers.
    pub fn set_force_share(&mut self) {
        self.each_disk(&|layer| layer.set(&mut |layer| layer.force_share = true));
    }

    /// What of the maps of the disk is read before it is asked for.
    pub fn set_prefetch(&mut self, prefetch: Prefetch) {
        self.each_disk(&|layer| layer.set(&mut |layer| layer.qcow2.prefetch = prefetch));
    }

    /// Its own images, and the disks that its filters use beside them.
    fn each_disk(&mut self, set: &dyn Fn(&mut LayerOptions)) {
        set(&mut self.layer);
        for beside in self.filters.iter_mut().flat_map(|filter| filter.beside.iter_mut()) {
            beside.1.each_disk(set);
        }
    }
}

impl LayerOptions {
    /// Sets an option, and with it what follows from it in the files of this image and in its backing files.
    fn set(&mut self, set: &mut dyn FnMut(&mut Self)) {
        let (cache, aio, above) = (self.cache, self.aio, self.inherited());
        set(self);
        let (new_cache, new_aio) = (self.cache, self.aio);
        for file in [&mut self.file, &mut *self.data_file, &mut *self.luks_header, &mut *self.bitmaps] {
            file.follow((cache, aio), (new_cache, new_aio));
        }
        let new_above = self.inherited();
        if let Backing::With(below) = &mut self.backing {
            below.set(&mut |below| below.follow(above, new_above));
        }
    }

    /// The options of the image above have changed: values inherited from it change as well.
    fn follow(&mut self, old: Inherited, new: Inherited) {
        follow(&mut self.cache.direct, old.cache.direct, new.cache.direct);
        follow(&mut self.cache.no_flush, old.cache.no_flush, new.cache.no_flush);
        follow(&mut self.cache.writethrough, old.cache.writethrough, new.cache.writethrough);
        follow(&mut self.aio, old.aio, new.aio);
        follow(&mut self.force_share, old.force_share, new.force_share);
        follow(&mut self.qcow2.prefetch, old.prefetch, new.prefetch);
    }
}

impl FileOptions {
    /// The image of this file has changed; a file below another follows too.
    fn follow(&mut self, old: (CacheMode, Option<Aio>), new: (CacheMode, Option<Aio>)) {
        follow(&mut self.direct, old.0.direct, new.0.direct);
        follow(&mut self.no_flush, old.0.no_flush, new.0.no_flush);
        follow(&mut self.aio, old.1, new.1);
        if let Some(over) = &mut self.over {
            over.below.follow(old, new);
        }
    }
}

/// A value that is what it would be if nothing was given becomes what follows from the new options.
fn follow<T: PartialEq>(value: &mut T, old: T, new: T) {
    if *value == old {
        *value = new;
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::super::Discard;
    use super::*;
    use crate::drive::parse_drive;

    fn read(line: &str) -> DiskOptions {
        DiskOptions::of_tree(parse_drive(OsStr::new(line), |_| false).unwrap()).unwrap()
    }

    fn none() -> CacheMode {
        CacheMode::of_name("none").unwrap()
    }

    /// `qemu-nbd --discard=unmap` freed no space: `pass-discard-request` was derived from `discard` when DRIVE was read, and the argument
    /// set `discard` afterwards. Guests trimmed for weeks, and the file stayed as large as it was.
    #[test]
    fn what_follows_from_discard_follows_from_it_also_when_that_is_set_later() {
        let engine = |options: &DiskOptions| {
            options
                .layer
                .qcow2
                .for_engine(true, options.layer.discard == Discard::Unmap)
                .discards()
                .pass_discard_request
        };
        for (line, passes) in [("file=x", true), ("file=x,pass-discard-request=off", false)] {
            let mut options = read(line);
            assert!(!engine(&options), "{line}");
            options.layer.discard = Discard::Unmap;
            assert_eq!(engine(&options), passes, "{line}");
        }
        let mut options = read("file=x,discard=unmap");
        assert!(engine(&options));
        options.layer.discard = Discard::Ignore;
        assert!(!engine(&options));
    }

    /// An option that is set later means what it means in DRIVE, for each file and each backing file.
    #[test]
    fn an_option_set_later_is_what_it_would_be_in_the_drive() {
        let drives = [
            "file=x,driver=qcow2,data-file=d,backing.driver=qcow2,backing.file=b,backing.backing.driver=raw,backing.backing.file=c",
            "driver=qcow2,file.driver=preallocate,file.file=x",
            "driver=quorum,vote-threshold=1,children.0.file=x,children.0.driver=qcow2,children.1.file=y,children.1.driver=qcow2",
        ];
        for drive in drives {
            let mut options = read(drive);
            options.set_cache(none());
            options.set_aio(Aio::Threads);
            options.set_prefetch(Prefetch::All);
            let said = match drive.starts_with("driver=quorum") {
                false => read(&format!("{drive},cache=none,aio=threads,prefetch=all")),
                true => {
                    let each = ["0", "1"].map(|child| {
                        format!("children.{child}.cache=none,children.{child}.aio=threads,children.{child}.prefetch=all")
                    });
                    read(&format!("{drive},{}", each.join(",")))
                }
            };
            assert_eq!(files(&options), files(&said), "{drive}");
        }
        let mut options = read("file=x,read-only=on,backing.driver=qcow2,backing.file=b");
        options.set_force_share();
        assert_eq!(options, read("file=x,read-only=on,force-share=on,backing.driver=qcow2,backing.file=b"));
    }

    /// How every file of a disk is opened.
    fn files(options: &DiskOptions) -> Vec<(bool, bool, Option<Aio>, Prefetch)> {
        let mut all = Vec::new();
        let mut layer = Some(options.layer.clone());
        for _ in 0..3 {
            let Some(now) = layer else { break };
            for file in [&now.file, &*now.data_file] {
                let file = file.over.as_ref().map_or(file, |over| &*over.below);
                all.push((file.direct, file.no_flush, file.aio, now.qcow2.prefetch));
            }
            layer = now.below();
        }
        all.extend(
            options.filters.iter().flat_map(|filter| &filter.beside).flat_map(|beside| files(&beside.1)),
        );
        all
    }

    #[test]
    fn what_was_given_otherwise_stays() {
        let mut options =
            read("file=x,file.aio=io_uring,data-file=d,data-file.cache.direct=on,backing.cache=unsafe");
        options.set_cache(CacheMode::of_name("writethrough").unwrap());
        options.set_aio(Aio::Threads);
        assert!(options.layer.cache.writethrough && options.layer.data_file.direct);
        assert_eq!(options.layer.file.aio, Some(Aio::IoUring));
        let below = options.layer.below().unwrap();
        assert!(below.cache.no_flush && below.file.no_flush);
    }
}
