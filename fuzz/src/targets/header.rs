//! The header and its extensions: whatever is accepted survives being written again.

use qcow2_layout::Header;

use crate::input::Input;

/// Bytes of the header before the extensions.
const EXTENSIONS_AT: usize = 112;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.byte();
    let bytes = if how & 1 == 1 { input.rest().to_vec() } else { over_a_base(&mut input) };
    let _ = Header::cluster_bits_of(&bytes);
    let lenient = Header::decode_for_check(&bytes);
    let Ok(header) = Header::decode(&bytes) else { return };
    assert!(lenient.is_ok(), "the check refuses a header that is accepted otherwise");
    let geometry = header.geometry().expect("a decoded header has a geometry");
    assert!(header.guest_size().is_multiple_of(512));
    assert!(geometry.cluster_size() <= 2 << 20);
    // Too many extensions for the cluster together with the fields that are added: refused, in words.
    let Ok(encoded) = header.encode() else { return };
    let again = Header::decode(&encoded).expect("what was encoded can be decoded");
    let comparable = |header: &Header| {
        let mut header = header.clone();
        // The feature name table is left out where there is no room for it.
        header.extensions.features.clear();
        header
    };
    assert_eq!(comparable(&again), comparable(&header), "decode(encode(x)) is not x");
}

/// A base image's header with other extensions, and some bytes of the header itself exchanged.
fn over_a_base(input: &mut Input<'_>) -> Vec<u8> {
    let bases = crate::base::all();
    let base = input.pick(&bases);
    let cluster = 1 << base.geometry.cluster_bits;
    let mut bytes = base.bytes[..cluster].to_vec();
    for _ in 0..input.byte() % 4 {
        let (at, byte) = (input.below(EXTENSIONS_AT as u64), input.byte());
        bytes[usize::try_from(at).unwrap_or(0)] = byte;
    }
    let extensions = input.bytes(cluster - EXTENSIONS_AT);
    bytes[EXTENSIONS_AT..EXTENSIONS_AT + extensions.len()].copy_from_slice(extensions);
    bytes
}
