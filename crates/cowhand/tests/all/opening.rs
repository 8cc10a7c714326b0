//! Images created and opened, and what is said where that fails.

use std::os::fd::AsRawFd;

use cowhand::{Aio, Cache, Disk, Error, ErrorKind, Existing, Format, Loops, NewImage, OpenOptions, create};

use crate::scratch::{SIZE_BYTES, Scratch, bytes_at};

fn refused(options: OpenOptions) -> (ErrorKind, String) {
    let error = options.open().wait().unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn what_cannot_be_opened_is_said_in_words() {
    let scratch = Scratch::new();
    let missing = scratch.file("missing.qcow2");
    let (kind, text) = refused(OpenOptions::new(&missing));
    assert_eq!(kind, ErrorKind::NotFound);
    assert_eq!(text, format!("cannot open {}: No such file or directory (os error 2)", missing.display()));
    let error = Disk::open(&missing).wait().unwrap_err();
    assert_eq!(error.errno(), rustix::io::Errno::NOENT.raw_os_error());

    let noise = scratch.file("noise");
    std::fs::write(&noise, [1; 4096]).unwrap();
    let (kind, text) = refused(OpenOptions::new(&noise));
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("raw is never guessed for writing"), "{text}");

    let (kind, text) = refused(scratch.options().set("l3-cache-size", "1M"));
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(text.contains("l3-cache-size") && text.contains("l2-cache-size"), "{text}");
    let (kind, text) = refused(scratch.options().read_only(true).set("read-only", "off"));
    assert_eq!(
        (kind, text.as_str()),
        (ErrorKind::Invalid, "option read-only is given twice in DRIVE; give it once")
    );
    let (kind, _) = refused(OpenOptions::drive("file=a,nonsense"));
    assert_eq!(kind, ErrorKind::Invalid);
    let (kind, text) = refused(scratch.options().limit("iops-total", 5).limit("iops-read", 5));
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(text.contains("throttling.iops-total") && text.contains("throttling.iops-read"), "{text}");

    let mut bytes = std::fs::read(scratch.path()).unwrap();
    bytes[20..24].copy_from_slice(&40u32.to_be_bytes());
    std::fs::write(scratch.path(), bytes).unwrap();
    let (kind, text) = refused(scratch.options());
    assert!(matches!(kind, ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Invalid), "{kind:?}");
    assert!(text.contains("cluster_bits") && text.contains("40"), "{text}");
}

#[test]
fn a_second_opener_is_refused_until_the_first_has_closed() {
    let scratch = Scratch::new();
    let first = scratch.open();
    let (kind, text) = refused(scratch.options());
    assert_eq!(kind, ErrorKind::InUse);
    assert!(text.contains("in use") && text.contains(&scratch.path().display().to_string()), "{text}");
    let replaced = NewImage { existing: Existing::Replace, ..NewImage::qcow2(1 << 20) };
    assert_eq!(create(scratch.path(), replaced).wait().unwrap_err().kind(), ErrorKind::InUse);
    first.close().wait().unwrap();
    let second = scratch.open();
    assert_eq!(second.size().unwrap(), SIZE_BYTES);
    second.close().wait().unwrap();
}

#[test]
fn a_read_only_disk_is_read_and_takes_no_changes() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    disk.write(0, vec![5; 512]).wait().unwrap();
    disk.close().wait().unwrap();
    let disk = scratch.options().read_only(true).open().wait().unwrap();
    let other = scratch.options().read_only(true).open().wait().unwrap();
    assert!(disk.info().unwrap().read_only);
    assert_eq!(bytes_at(&disk, 0, 512), [5; 512]);
    assert_eq!(bytes_at(&other, 0, 512), [5; 512]);
    let changes = [
        disk.write(0, vec![1; 512]).wait().map(drop),
        disk.discard(0, 512).wait(),
        disk.create_snapshot("no").wait().map(drop),
    ];
    for change in changes {
        let error = change.unwrap_err();
        let errno = rustix::io::Errno::ROFS.raw_os_error();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::ReadOnly, errno), "{error}");
    }
    disk.flush().wait().unwrap();
    disk.close().wait().unwrap();
    other.close().wait().unwrap();
}

#[test]
fn a_drive_is_a_path_a_line_or_json() {
    let scratch = Scratch::new();
    let path = scratch.path().display().to_string();
    let drives = [
        path.clone(),
        format!("file={path},cache=writethrough,discard=unmap,throttling.iops-total=7"),
        format!(
            "json:{{\"driver\": \"qcow2\", \"file\": {{\"driver\": \"file\", \"filename\": {path:?}}}, \"discard\": \"unmap\"}}"
        ),
    ];
    for (index, drive) in drives.iter().enumerate() {
        let disk = OpenOptions::drive(drive).open().wait().unwrap();
        let info = disk.info().unwrap();
        assert_eq!((info.driver, info.size_bytes, info.discards), ("qcow2", SIZE_BYTES, index > 0));
        assert_eq!(info.chain, std::slice::from_ref(&path));
        let limits = if index == 1 { vec![("iops-total", 7)] } else { vec![] };
        assert_eq!(disk.limits().unwrap(), limits);
        disk.close().wait().unwrap();
    }
}

#[test]
fn every_cache_mode_and_way_to_the_kernel_holds_what_is_written() {
    let scratch = Scratch::new();
    let modes = [Cache::Writeback, Cache::Writethrough, Cache::None, Cache::Directsync, Cache::Unsafe];
    for (number, cache) in (1u8..).zip(modes) {
        for aio in [Aio::Threads, Aio::IoUring] {
            let disk = match scratch.options().cache(cache).aio(aio).open().wait() {
                // tmpfs of old kernels has no O_DIRECT.
                Err(error) if error.to_string().contains("O_DIRECT") => continue,
                opened => opened.unwrap(),
            };
            disk.write(1000, vec![number; 5000]).wait().unwrap();
            assert_eq!(bytes_at(&disk, 1000, 5000), vec![number; 5000], "{}", cache.name());
            disk.close().wait().unwrap();
        }
    }
}

#[test]
fn a_chain_is_opened_and_names_that_lead_elsewhere_are_not_followed() {
    let scratch = Scratch::new();
    let base = scratch.open();
    base.write(0, vec![1; 65536 * 2]).wait().unwrap();
    base.close().wait().unwrap();
    let overlay = scratch.file("overlay.qcow2");
    create(&overlay, NewImage::overlay(SIZE_BYTES, "disk.qcow2", Format::Qcow2)).wait().unwrap();
    let disk = Disk::open(&overlay).wait().unwrap();
    disk.write(0, vec![2; 65536]).wait().unwrap();
    assert_eq!(bytes_at(&disk, 65535, 2), [2, 1]);
    assert_eq!(disk.info().unwrap().chain.len(), 2);
    let extents = disk.extents(0, SIZE_BYTES).wait().unwrap();
    let seen: Vec<_> =
        extents.iter().map(|extent| (extent.offset, extent.len, extent.data, extent.depth)).collect();
    assert_eq!(seen[..2], [(0, 65536, true, 0), (65536, 65536, true, 1)]);
    assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), SIZE_BYTES);
    disk.close().wait().unwrap();

    let elsewhere = tempfile::tempdir().unwrap();
    let foreign = elsewhere.path().join("foreign.qcow2");
    let base = scratch.path().display().to_string();
    create(&foreign, NewImage::overlay(SIZE_BYTES, base, Format::Qcow2)).wait().unwrap();
    let (kind, text) = refused(OpenOptions::new(&foreign));
    assert_eq!(kind, ErrorKind::Denied);
    assert!(text.contains("outside the image's own directory"), "{text}");
    let allowed = OpenOptions::new(&foreign).allow_path(scratch.path().parent().unwrap());
    allowed.open().wait().unwrap().close().wait().unwrap();
}

#[test]
fn images_are_created_as_asked_and_nothing_is_replaced_unasked() -> Result<(), Error> {
    let scratch = Scratch::new();
    let raw = scratch.file("disk.raw");
    create(&raw, NewImage::raw(1 << 20)).wait()?;
    let disk = OpenOptions::new(&raw).format(Format::Raw).open().wait()?;
    disk.write(4096, vec![1; 512]).wait()?;
    let info = disk.info()?;
    assert_eq!((info.driver, info.size_bytes, info.cluster_bytes), ("raw", 1 << 20, None));
    disk.resize(2 << 20, cowhand::ResizeOptions::default()).wait()?;
    assert_eq!(disk.info()?.size_bytes, 2 << 20);
    disk.close().wait()?;
    assert_eq!(std::fs::read(&raw).unwrap()[4096..4608], [1; 512]);

    let again = create(&raw, NewImage::raw(1 << 20)).wait().unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Exists);
    assert!(again.to_string().contains(&raw.display().to_string()), "{again}");
    assert_eq!(std::fs::read(&raw).unwrap()[4096..4608], [1; 512]);

    let mut odd = NewImage::qcow2(1 << 20);
    odd.options.cluster_size = 1000;
    let path = scratch.file("odd.qcow2");
    let error = create(&path, odd).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.to_string(), "cluster_size is 1000; allowed: a power of two from 512 to 2097152 (2M)");
    assert!(!path.exists());
    Ok(())
}

#[test]
fn disks_share_loops_and_each_closes_alone() {
    let loops = Loops::new(2).unwrap();
    let scratches: Vec<_> = (0..5).map(|_| Scratch::new()).collect();
    let disks: Vec<_> =
        scratches.iter().map(|scratch| scratch.options().loops(&loops).open().wait().unwrap()).collect();
    drop(loops);
    for (number, disk) in disks.iter().enumerate() {
        disk.write(0, vec![number as u8; 512]).wait().unwrap();
    }
    for (number, disk) in disks.iter().enumerate() {
        assert_eq!(bytes_at(disk, 0, 512), vec![number as u8; 512]);
        disk.close().wait().unwrap();
    }
    assert!(cowhand::map_memory().bytes_max >= 1 << 20);
}

/// A jailed monitor has a descriptor and no name that leads to the file any more.
#[test]
fn a_disk_opens_by_a_descriptor() {
    let scratch = Scratch::new();
    let disk = scratch.options().open().wait().unwrap();
    disk.write(0, vec![5; 512]).wait().unwrap();
    disk.close().wait().unwrap();
    let (path, jailed) = (scratch.file("disk.qcow2"), scratch.file("jailed"));
    let open = || std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let file = open();
    std::fs::rename(&path, &jailed).unwrap();
    let by_descriptor = |file: &std::fs::File| format!("/proc/self/fd/{}", file.as_raw_fd());
    let disk = OpenOptions::new(by_descriptor(&file)).open().wait().unwrap();
    assert_eq!(bytes_at(&disk, 0, 512), vec![5; 512]);
    disk.write(512, vec![6; 512]).wait().unwrap();
    disk.close().wait().unwrap();
}
