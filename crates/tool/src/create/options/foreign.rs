//! Options of images that are made whole, by `create` and `convert`: vpc and vmdk.

use formats::sink::{Adapter, NewImage as Foreign, VmdkOptions, VmdkSubformat, VpcOptions, VpcSubformat};
use graph::probe::Format;

use super::definition::{Formats, NewImage, OptionDef, Sets, known};
use super::values::switch;
use crate::create::encryption::named;

/// Formats of images that are made.
pub const MADE: [&str; 5] = ["qcow2", "raw", "luks", "vpc", "vmdk"];

/// Whether images of `format` are only read, or made whole.
pub(super) fn is_foreign(format: Format) -> bool {
    ![Format::Qcow2, Format::Raw, Format::Luks].contains(&format)
}

const fn vpc(name: &'static str, sets: Sets, help: &'static str) -> OptionDef {
    OptionDef { formats: Formats::Vpc, ..known(name, sets, help) }
}

const fn vmdk(name: &'static str, sets: Sets, help: &'static str) -> OptionDef {
    OptionDef { formats: Formats::Vmdk, ..known(name, sets, help) }
}

fn of_vpc(image: &mut NewImage) -> Option<&mut VpcOptions> {
    match &mut image.foreign {
        Some(Foreign::Vpc(options)) => Some(options),
        _ => None,
    }
}

fn of_vmdk(image: &mut NewImage) -> Option<&mut VmdkOptions> {
    match &mut image.foreign {
        Some(Foreign::Vmdk(options)) => Some(options),
        _ => None,
    }
}

/// What a switch takes.
pub(super) const SWITCH: &str = "on|off";
/// What qemu-img shows in place of a version that was not given.
const UNDEFINED: &str = "undefined";

/// Every option that is known.
pub(super) const KNOWN: [OptionDef; 8] = [
    vpc(
        "subformat",
        Sets::Word("dynamic|fixed", |image, word| {
            const NAMED: [(&str, VpcSubformat); 2] =
                [("dynamic", VpcSubformat::Dynamic), ("fixed", VpcSubformat::Fixed)];
            of_vpc(image)?.subformat = named(&NAMED, word)?;
            Some(())
        }),
        "blocks with data, or the whole disk and a footer, as Azure needs it (default dynamic)",
    ),
    vpc(
        "force_size",
        Sets::Word(SWITCH, |image, word| {
            of_vpc(image)?.force_size = switch(word)?;
            Some(())
        }),
        "the disk has exactly its size, which is not rounded up to whole cylinders (Azure needs it)",
    ),
    vmdk(
        "subformat",
        Sets::Word("monolithicSparse|streamOptimized", |image, word| {
            const NAMED: [(&str, VmdkSubformat); 2] = [
                ("monolithicSparse", VmdkSubformat::MonolithicSparse),
                ("streamOptimized", VmdkSubformat::StreamOptimized),
            ];
            of_vmdk(image)?.subformat = named(&NAMED, word)?;
            Some(())
        }),
        "grains as they are, or compressed, as in an OVA (default monolithicSparse)",
    ),
    vmdk(
        "adapter_type",
        Sets::Word("ide|buslogic|lsilogic|legacyESX", |image, word| {
            of_vmdk(image)?.adapter = named(&Adapter::NAMED, word)?;
            Some(())
        }),
        "the disk's controller (default ide)",
    ),
    vmdk(
        "hwversion",
        Sets::Word("VERSION", |image, word| {
            of_vmdk(image)?.hardware_version = (word != UNDEFINED).then(|| word.to_owned());
            Some(())
        }),
        "version of the machine's hardware (default 4)",
    ),
    vmdk(
        "compat6",
        Sets::Word(SWITCH, |image, word| {
            of_vmdk(image)?.compat6 = switch(word)?;
            Some(())
        }),
        "hardware version 6",
    ),
    vmdk(
        "toolsversion",
        Sets::Word("VERSION", |image, word| {
            of_vmdk(image)?.tools_version = Some(word.to_owned());
            Some(())
        }),
        "version of the tools in the guest (default 2147483647: not managed)",
    ),
    vmdk(
        "zeroed_grain",
        Sets::Word("off", |_, word| (switch(word) == Some(false)).then_some(())),
        "no effect here: grains of zeroes are left out",
    ),
];
