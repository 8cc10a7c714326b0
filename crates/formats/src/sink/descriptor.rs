//! The descriptor of a vmdk: what programs that import an OVA read of its disk ("Virtual Disk Format 5.0", "The Descriptor File").

use block::SECTOR_BYTES;

use super::{Adapter, Stamp, VmdkOptions};

/// Sectors of a track, as a BIOS counts them.
const TRACK_SECTORS: u64 = 63;
/// Heads of an IDE disk; SCSI controllers show as many as fit.
const HEADS_IDE: u64 = 16;
const HEADS_SCSI: u64 = 255;
/// It means that there is no parent.
const NO_CONTENT_ID: u32 = u32::MAX;

/// For a disk of `size` bytes in one sparse extent, which is the file itself.
pub(super) fn of(create_type: &str, options: &VmdkOptions, stamp: &Stamp, size: u64) -> String {
    let sectors = size.div_ceil(SECTOR_BYTES);
    let heads = if options.adapter == Adapter::Ide { HEADS_IDE } else { HEADS_SCSI };
    let cylinders = sectors / (TRACK_SECTORS * heads);
    let (id, long_id) = content_ids(stamp.id);
    let (adapter, name) = (options.adapter.name(), quotable(&stamp.file_name));
    let (hardware, tools) = (quotable(options.hardware_version()), quotable(options.tools_version()));
    format!(
        "# Disk DescriptorFile\n\
         version=1\n\
         encoding=\"UTF-8\"\n\
         CID={id:08x}\n\
         parentCID={NO_CONTENT_ID:08x}\n\
         createType=\"{create_type}\"\n\
         \n\
         # Extent description\n\
         RW {sectors} SPARSE \"{name}\"\n\
         \n\
         # The Disk Data Base\n\
         #DDB\n\
         \n\
         ddb.virtualHWVersion = \"{hardware}\"\n\
         ddb.geometry.cylinders = \"{cylinders}\"\n\
         ddb.geometry.heads = \"{heads}\"\n\
         ddb.geometry.sectors = \"{TRACK_SECTORS}\"\n\
         ddb.adapterType = \"{adapter}\"\n\
         ddb.toolsVersion = \"{tools}\"\n\
         ddb.longContentID = \"{long_id:032x}\"\n"
    )
}

/// The id of the disk's content, and the long one, which ends in it. The two highest numbers have meanings of their own.
fn content_ids(random: [u8; 16]) -> (u32, u128) {
    let long = u128::from_be_bytes(random);
    let short = (long as u32).min(NO_CONTENT_ID - 2);
    (short, long & !u128::from(u32::MAX) | u128::from(short))
}

/// Without what would end a value.
fn quotable(text: &str) -> String {
    text.chars().map(|letter| if letter == '"' || letter.is_control() { '_' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_does_not_end_early() {
        let stamp = Stamp { unix_seconds: 0, id: [0xff; 16], file_name: "a\"\nddb.x = \"1".to_owned() };
        let text = of("streamOptimized", &VmdkOptions::default(), &stamp, 1 << 30);
        assert!(text.contains("RW 2097152 SPARSE \"a__ddb.x = _1\"\n"), "{text}");
        assert!(text.contains("\nCID=fffffffd\n") && text.contains("fffffffffffffffd\"\n"), "{text}");
    }
}
