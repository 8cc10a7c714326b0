//! The line that `qemu-img create` prints before it begins.

use std::path::Path;

use graph::size::parse_size;
use tool::create::options::{Assignments, NewImage};
use tool::numbers::whole;

/// Options of qcow2 images in qemu-img's order; those with a value are shown also where they were not given.
const QCOW2: [(&str, Option<&str>); 24] = [
    ("encryption", None),
    ("encrypt.format", None),
    ("encrypt.key-secret", None),
    ("encrypt.cipher-alg", None),
    ("encrypt.cipher-mode", None),
    ("encrypt.ivgen-alg", None),
    ("encrypt.ivgen-hash-alg", None),
    ("encrypt.hash-alg", None),
    ("encrypt.iter-time", None),
    ("cluster_size", Some("")),
    ("extended_l2", Some("off")),
    ("preallocation", None),
    ("compression_type", Some("zlib")),
    ("keep_data_file", None),
    ("size", Some("")),
    ("compat", None),
    ("backing_file", None),
    ("backing_fmt", None),
    ("data_file", None),
    ("data_file_raw", None),
    ("lazy_refcounts", Some("off")),
    ("refcount_bits", Some("16")),
    ("nocow", None),
    ("extent_size_hint", None),
];

/// Options of LUKS files, likewise.
const LUKS: [(&str, Option<&str>); 12] = [
    ("size", Some("")),
    ("key-secret", None),
    ("cipher-alg", None),
    ("cipher-mode", None),
    ("ivgen-alg", None),
    ("ivgen-hash-alg", None),
    ("hash-alg", None),
    ("iter-time", None),
    ("detached-header", None),
    ("nocow", None),
    ("preallocation", None),
    ("extent_size_hint", None),
];

/// Options of a VHD.
const VPC: [(&str, Option<&str>); 6] = [
    ("size", Some("")),
    ("subformat", None),
    ("force_size", None),
    ("nocow", None),
    ("preallocation", None),
    ("extent_size_hint", None),
];

/// Options of a vmdk.
const VMDK: [(&str, Option<&str>); 9] = [
    ("size", Some("")),
    ("adapter_type", None),
    ("compat6", Some("off")),
    ("hwversion", Some("undefined")),
    ("toolsversion", None),
    ("subformat", None),
    ("zeroed_grain", None),
    ("nocow", None),
    ("extent_size_hint", None),
];

/// "Formatting NAME, fmt=..." for an image of `size` bytes, with the options as they were `given`.
pub fn formatting(file: &Path, image: &NewImage, size: u64, given: &Assignments) -> String {
    let mut line = format!("Formatting '{}', fmt={}", file.display(), image.format);
    let value = |name: &str, shown: Option<&str>| {
        let options = &image.options;
        Some(match name {
            "size" => size.to_string(),
            "cluster_size" => options.cluster_size.to_string(),
            // A size is shown in bytes, whatever its form was.
            "extent_size_hint" => {
                let given = given.get(name)?;
                parse_size(given).map_or_else(|_| given.clone(), |bytes| bytes.to_string())
            }
            // A number likewise, in its decimal form.
            "refcount_bits" | "iter-time" | "encrypt.iter-time" => {
                let Some(given) = given.get(name) else { return shown.map(str::to_owned) };
                whole::<u64>(given).map_or_else(|_| given.clone(), |number| number.to_string())
            }
            "backing_file" => options.backing_file.as_ref()?.replace(',', ",,"),
            "backing_fmt" => options.backing_format.clone()?,
            _ => {
                given.get(name).map(|value| value.replace(',', ",,")).or_else(|| shown.map(str::to_owned))?
            }
        })
    };
    let names: &[_] = match image.format.name() {
        "qcow2" => &QCOW2,
        "luks" => &LUKS,
        "vpc" => &VPC,
        "vmdk" => &VMDK,
        _ => &[("size", Some("")), ("nocow", None), ("preallocation", None), ("extent_size_hint", None)],
    };
    for (name, shown) in names {
        if let Some(value) = value(name, *shown) {
            line.push_str(&format!(" {name}={value}"));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use graph::drivers::format_called;

    use graph::probe::Format;
    use tool::create::options::assignments;

    use super::*;

    fn line(format: Format, options: &str, backing: Option<&str>) -> String {
        let texts = [options.to_owned()];
        let texts = if options.is_empty() { &[][..] } else { &texts };
        let mut image = NewImage::parse_whole(texts, format).unwrap();
        image.options.backing_file = backing.map(str::to_owned);
        image.options.backing_format = backing.map(|_| "qcow2".to_owned());
        formatting(Path::new("x"), &image, 1000, &assignments(texts))
    }

    #[test]
    fn options_stand_in_qemu_imgs_order_and_as_they_were_given() {
        catalog::install();
        let table = [
            (
                "",
                None,
                "cluster_size=65536 extended_l2=off compression_type=zlib size=1000 lazy_refcounts=off refcount_bits=16",
            ),
            (
                "compat=v3,cluster_size=4k,preallocation=off,refcount_bits=1,data_file=a,,b,data_file_raw=on",
                None,
                "cluster_size=4096 extended_l2=off preallocation=off compression_type=zlib size=1000 compat=v3 \
                 data_file=a,,b data_file_raw=on lazy_refcounts=off refcount_bits=1",
            ),
            (
                "lazy_refcounts=on",
                Some("h,i"),
                "cluster_size=65536 extended_l2=off compression_type=zlib size=1000 backing_file=h,,i \
                 backing_fmt=qcow2 lazy_refcounts=on refcount_bits=16",
            ),
        ];
        for (options, backing, expected) in table {
            assert_eq!(
                line(Format::Qcow2, options, backing),
                format!("Formatting 'x', fmt=qcow2 {expected}")
            );
        }
        assert_eq!(
            line(Format::Luks, "iter-time=10,preallocation=off,cipher-mode=cbc,key-secret=s", None),
            "Formatting 'x', fmt=luks size=1000 key-secret=s cipher-mode=cbc iter-time=10 preallocation=off"
        );
        let vpc = format_called("vpc").unwrap();
        assert_eq!(
            line(vpc, "force_size=on,subformat=fixed", None),
            "Formatting 'x', fmt=vpc size=1000 subformat=fixed force_size=on"
        );
        assert_eq!(
            line(Format::Raw, "preallocation=full", None),
            "Formatting 'x', fmt=raw size=1000 preallocation=full"
        );
    }
}
