//! `info` for people: the labels of qemu-img, so that scripts that grep them still work.

use std::io::{self, Write};

use graph::size::human_size;
use qcow2_layout::{BitmapEntry, Header};
use serde::Serialize;
use serde_json::{Map, Value};
use tool::info::model::{FormatSpecific, ImageInfo, SnapshotInfo};
use tool::info::read::specific;
use tool::output::printable;
use tool::voice;

use super::date::utc;

/// Writes one image.
pub fn write_human(out: &mut dyn Write, info: &ImageInfo) -> io::Result<()> {
    writeln!(out, "image: {}", printable(&info.filename))?;
    writeln!(out, "file format: {}", info.format)?;
    writeln!(out, "virtual size: {}", size_and_bytes(info.virtual_size))?;
    writeln!(out, "disk size: {}", disk_size(info))?;
    if info.encrypted == Some(true) {
        writeln!(out, "encrypted: yes")?;
    }
    if let Some(cluster_size) = info.cluster_size {
        writeln!(out, "cluster_size: {cluster_size}")?;
    }
    if info.dirty_flag == Some(true) {
        writeln!(out, "cleanly shut down: no")?;
    }
    write_backing(out, info)?;
    write_limits(out, info, "")?;
    show_snapshots(out, &info.snapshots)?;
    match &info.format_specific {
        Some(FormatSpecific::Qcow2(specific)) => write_specific(out, specific)?,
        Some(FormatSpecific::Luks(specific)) => write_specific(out, specific)?,
        Some(FormatSpecific::Luks2(specific)) => write_specific(out, specific)?,
        Some(FormatSpecific::Vmdk(specific)) => write_specific(out, specific)?,
        Some(FormatSpecific::File(_)) | None => {}
    }
    for child in &info.children {
        write_child(out, &format!("/{}", child.name), &child.info)?;
    }
    if let Some(medium) = &info.medium {
        writeln!(out, "Medium:")?;
        write_members(out, medium, "    ")?;
    }
    Ok(())
}

fn write_backing(out: &mut dyn Write, info: &ImageInfo) -> io::Result<()> {
    let Some(name) = &info.backing_filename else { return Ok(()) };
    write!(out, "backing file: {}", printable(name))?;
    match &info.full_backing_filename {
        Some(full) if full != name => writeln!(out, " (actual path: {})", printable(full))?,
        Some(_) => writeln!(out)?,
        None if voice::is_qemu() => writeln!(out, " (cannot determine actual path)")?,
        None => writeln!(out, " (actual path unknown)")?,
    }
    match &info.backing_filename_format {
        Some(format) => writeln!(out, "backing file format: {}", printable(format)),
        None => Ok(()),
    }
}

/// The table of snapshots; nothing if there are none.
pub fn show_snapshots(out: &mut dyn Write, snapshots: &[SnapshotInfo]) -> io::Result<()> {
    if snapshots.is_empty() {
        return Ok(());
    }
    writeln!(out, "Snapshot list:")?;
    let date = if voice::is_qemu() { "DATE" } else { "DATE (UTC)" };
    let titles = ["ID", "TAG", "VM_SIZE", date, "VM_CLOCK", "ICOUNT"].map(str::to_owned);
    write_row(out, &titles)?;
    for snapshot in snapshots {
        let row = [
            printable(&snapshot.id).into_owned(),
            printable(&snapshot.name).into_owned(),
            human_size(snapshot.vm_state_size),
            utc(snapshot.date_sec),
            clock(snapshot),
            snapshot.icount.map_or_else(|| "--".to_owned(), |count| count.to_string()),
        ];
        write_row(out, &row)?;
    }
    Ok(())
}

fn write_row(out: &mut dyn Write, [id, name, size, date, clock, icount]: &[String; 6]) -> io::Result<()> {
    writeln!(out, "{id:<7} {name:<16} {size:>8} {date:>19} {clock:>15} {icount:>10}")
}

fn clock(snapshot: &SnapshotInfo) -> String {
    let (seconds, nanoseconds) = (snapshot.vm_clock_sec, snapshot.vm_clock_nsec);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:04}:{minutes:02}:{:02}.{:03}", seconds % 60, nanoseconds / 1_000_000)
}

/// What only a qcow2 image has.
pub fn show_specific(out: &mut dyn Write, header: &Header, bitmaps: &[BitmapEntry]) -> io::Result<()> {
    write_specific(out, &specific(header, bitmaps))
}

fn write_specific(out: &mut dyn Write, specific: &impl Serialize) -> io::Result<()> {
    let mut value = serde_json::to_value(specific).map_err(io::Error::from)?;
    if let Some(Value::Object(encrypt)) = value.get_mut("encrypt") {
        in_qemus_order(encrypt);
    }
    writeln!(out, "Format specific information:")?;
    write_members(out, &value, "    ")
}

/// Puts the format of an encryption where qemu-img prints it.
fn in_qemus_order(encrypt: &mut Map<String, Value>) {
    let Some(format) = encrypt.shift_remove("format") else { return };
    let place = encrypt.keys().position(|name| name == "cipher-mode").unwrap_or(encrypt.len());
    encrypt.shift_insert(place, "format".to_owned(), format);
}

/// Names and values, one a line; what is nested is indented.
fn write_members(out: &mut dyn Write, value: &Value, indent: &str) -> io::Result<()> {
    let members: Vec<(String, &Value)> = match value {
        Value::Object(object) => object.iter().map(|(name, value)| (name.replace('-', " "), value)).collect(),
        Value::Array(list) => {
            list.iter().enumerate().map(|(index, value)| (format!("[{index}]"), value)).collect()
        }
        _ => Vec::new(),
    };
    for (name, value) in members {
        match value {
            Value::Object(_) | Value::Array(_) => {
                writeln!(out, "{indent}{name}:")?;
                write_members(out, value, &format!("{indent}    "))?;
            }
            Value::String(text) => writeln!(out, "{indent}{name}: {}", printable(text))?,
            other => writeln!(out, "{indent}{name}: {other}")?,
        }
    }
    Ok(())
}

fn write_child(out: &mut dyn Write, path: &str, info: &ImageInfo) -> io::Result<()> {
    writeln!(out, "Child node '{path}':")?;
    writeln!(out, "    filename: {}", printable(&info.filename))?;
    writeln!(out, "    protocol type: {}", info.format)?;
    writeln!(out, "    file length: {}", size_and_bytes(info.virtual_size))?;
    writeln!(out, "    disk size: {}", disk_size(info))?;
    write_limits(out, info, "    ")
}

fn write_limits(out: &mut dyn Write, info: &ImageInfo, indent: &str) -> io::Result<()> {
    let Some(limits) = &info.limits else { return Ok(()) };
    writeln!(out, "{indent}Block limits:")?;
    let limits = serde_json::to_value(limits).map_err(io::Error::from)?;
    write_members(out, &limits, &format!("{indent}    "))
}

fn disk_size(info: &ImageInfo) -> String {
    info.actual_size.map_or_else(|| "unavailable".to_owned(), human_size)
}

fn size_and_bytes(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", human_size(bytes))
}

#[cfg(test)]
mod tests {
    use tool::info::model::{BitmapInfo, Child, FileInfo, Qcow2Info};

    use super::*;

    #[test]
    fn the_format_of_an_encryption_stands_before_its_mode() {
        let parsed = |text| serde_json::from_str::<Map<String, Value>>(text).unwrap();
        for (given, order) in [
            (r#"{"uuid":1,"cipher-mode":2,"slots":3,"format":4}"#, "uuid format cipher-mode slots"),
            (r#"{"format":"aes"}"#, "format"),
            (r#"{"uuid":1}"#, "uuid"),
        ] {
            let mut encrypt = parsed(given);
            in_qemus_order(&mut encrypt);
            let names: Vec<_> = encrypt.keys().map(String::as_str).collect();
            assert_eq!(names.join(" "), order);
        }
    }

    fn file(filename: &str) -> ImageInfo {
        ImageInfo {
            filename: filename.into(),
            format: "file".into(),
            virtual_size: 459264,
            actual_size: Some(417792),
            dirty_flag: Some(false),
            cluster_size: None,
            encrypted: None,
            backing_filename: None,
            full_backing_filename: None,
            backing_filename_format: None,
            snapshots: Vec::new(),
            format_specific: Some(FormatSpecific::File(FileInfo {})),
            children: Vec::new(),
            limits: None,
            medium: None,
        }
    }

    fn image() -> ImageInfo {
        let specific = Qcow2Info {
            compat: "1.1".into(),
            compression_type: "zlib".into(),
            lazy_refcounts: Some(true),
            bitmaps: vec![BitmapInfo { flags: vec!["auto".into()], name: "bm".into(), granularity: 65536 }],
            refcount_bits: 16,
            data_file: None,
            data_file_raw: None,
            corrupt: Some(false),
            extended_l2: Some(false),
            encrypt: None,
        };
        let snapshot = SnapshotInfo {
            id: "1".into(),
            name: "before\u{1b}[2J".into(),
            vm_state_size: 0,
            date_sec: 1_795_222_676,
            date_nsec: 0,
            vm_clock_sec: 3_723,
            vm_clock_nsec: 4_000_000,
            icount: None,
        };
        ImageInfo {
            format: "qcow2".into(),
            virtual_size: 10 << 20,
            dirty_flag: Some(true),
            cluster_size: Some(65536),
            backing_filename: Some("mid.qcow2".into()),
            full_backing_filename: Some("dir/mid.qcow2".into()),
            backing_filename_format: Some("qcow2".into()),
            snapshots: vec![snapshot],
            format_specific: Some(FormatSpecific::Qcow2(specific)),
            children: vec![Child { name: "file".into(), info: file("dir/top.qcow2") }],
            ..file("dir/top.qcow2")
        }
    }

    #[test]
    fn people_read_qemu_imgs_labels_and_no_control_characters() {
        let expected = "\
image: dir/top.qcow2
file format: qcow2
virtual size: 10 MiB (10485760 bytes)
disk size: 408 KiB
cluster_size: 65536
cleanly shut down: no
backing file: mid.qcow2 (actual path: dir/mid.qcow2)
backing file format: qcow2
Snapshot list:
ID      TAG               VM_SIZE          DATE (UTC)        VM_CLOCK     ICOUNT
1       before\\u{1b}[2J       0 B 2026-11-21 00:57:56  0001:02:03.004         --
Format specific information:
    compat: 1.1
    compression type: zlib
    lazy refcounts: true
    bitmaps:
        [0]:
            flags:
                [0]: auto
            name: bm
            granularity: 65536
    refcount bits: 16
    corrupt: false
    extended l2: false
Child node '/file':
    filename: dir/top.qcow2
    protocol type: file
    file length: 448 KiB (459264 bytes)
    disk size: 408 KiB
";
        let mut text = Vec::new();
        write_human(&mut text, &image()).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn json_has_qemu_imgs_fields() {
        let value = serde_json::to_value(image()).unwrap();
        assert_eq!(value["format-specific"]["type"], "qcow2");
        assert_eq!(value["format-specific"]["data"]["refcount-bits"], 16);
        assert_eq!(
            value["children"][0]["info"]["format-specific"],
            serde_json::json!({"type": "file", "data": {}})
        );
        assert_eq!(value["snapshots"][0]["vm-clock-sec"], 3723);
        assert!(value["snapshots"][0].get("icount").is_none());
        assert!(value.get("encrypted").is_none());
    }
}
