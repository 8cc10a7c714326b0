//! Objects as zstd frames. Their names are the hashes of the plain bytes, which alone are trusted.

use crate::chunked::chunk_name::ChunkName;
use crate::chunked::key::ImageKey;

/// As in compressed clusters of qcow2: zstd's default.
const ZSTD_LEVEL: i32 = 3;
/// A frame begins with it (RFC 8878, 3.1.1).
const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Why the bytes of an object are not what its name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// It has neither the plain length nor a shorter one of a frame.
    Length(u64),
    /// The frame cannot be decompressed to the plain length.
    Frame(String),
    /// The hash is another one.
    Content,
    /// It was not encrypted with the image's key under this name, or was changed since.
    Encryption,
}

/// `bytes` as a zstd frame; `None` if that is not shorter. Costs the frame's memory and the time of compressing.
pub(crate) fn compressed(bytes: &[u8]) -> Option<Vec<u8>> {
    // Without room for what is not shorter zstd ends there.
    let mut compressed = Vec::with_capacity(bytes.len().checked_sub(1)?);
    zstd_safe::compress(&mut compressed, bytes, ZSTD_LEVEL).ok()?;
    (compressed.len() < bytes.len()).then_some(compressed)
}

/// The `len` bytes that `name` stands for, of an object's `body`: those bytes themselves, or a shorter zstd frame of them, encrypted if there is a `key`. Costs
/// `len` bytes of memory at most besides, whatever a frame says, and a hash.
///
/// # Errors
/// When the object is neither.
pub(crate) fn plain(
    body: Vec<u8>,
    name: ChunkName,
    len: usize,
    key: Option<&ImageKey>,
) -> Result<Vec<u8>, Damage> {
    let body = match key {
        Some(key) => key.decrypted(name, body).ok_or(Damage::Encryption)?,
        None => body,
    };
    let bytes = unpacked(body, len)?;
    match ChunkName::of_chunk(&bytes, key) == name {
        true => Ok(bytes),
        false => Err(Damage::Content),
    }
}

/// The `len` bytes that a body is, or a shorter zstd frame of them. Costs `len` bytes of memory at most besides.
///
/// # Errors
/// When it is neither.
pub(crate) fn unpacked(body: Vec<u8>, len: usize) -> Result<Vec<u8>, Damage> {
    match body.len() {
        found if found == len => Ok(body),
        found if found < len && body.starts_with(&MAGIC) => decompressed(&body, len),
        found => Err(Damage::Length(found as u64)),
    }
}

fn decompressed(frame: &[u8], len: usize) -> Result<Vec<u8>, Damage> {
    let mut bytes = vec![0; len];
    // In one call the output is the window: a frame that asks for a larger one takes no memory.
    let decompressed = zstd_safe::decompress(bytes.as_mut_slice(), frame);
    match decompressed.map_err(zstd_safe::get_error_name) {
        Ok(found) if found == len => Ok(bytes),
        Ok(found) => Err(Damage::Frame(format!("it ends after {found} of {len} bytes"))),
        Err(error) => Err(Damage::Frame(error.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_its_plain_bytes_or_a_shorter_frame_of_them_and_nothing_else() {
        let text = b"all work and no play ".repeat(1000);
        let (name, len) = (ChunkName::of(&text), text.len());
        let frame = compressed(&text).unwrap();
        assert!(frame.len() < 200, "{}", frame.len());
        assert_eq!(plain(text.clone(), name, len, None), Ok(text.clone()));
        assert_eq!(plain(frame.clone(), name, len, None), Ok(text.clone()));
        let damage = |body: &[u8], len: usize| plain(body.to_vec(), name, len, None).unwrap_err();
        assert_eq!(damage(&text[..len - 1], len), Damage::Length(len as u64 - 1));
        assert_eq!(damage(&[&text[..], b"x"].concat(), len), Damage::Length(len as u64 + 1));
        assert_eq!(damage(&[], len), Damage::Length(0));
        assert!(matches!(damage(&frame[..frame.len() - 1], len), Damage::Frame(_)));
        assert!(matches!(damage(&[&frame[..], b"x"].concat(), len), Damage::Frame(_)));
        // A frame that has more than the object stands for, and one that has less.
        assert!(matches!(damage(&frame, len - 1), Damage::Frame(_)));
        assert_eq!(
            damage(&frame, len + 1),
            Damage::Frame(format!("it ends after {len} of {} bytes", len + 1))
        );
        assert_eq!(damage(&compressed(&vec![7; len]).unwrap(), len), Damage::Content);
        let mut flipped = text.clone();
        flipped[5] ^= 1;
        assert_eq!(damage(&flipped, len), Damage::Content);
    }

    /// A frame of a kilobyte says that it takes gigabytes.
    #[test]
    fn a_frame_expands_to_the_length_that_it_stands_for_at_most() {
        let frame = compressed(&vec![0; 64 << 20]).unwrap();
        assert!(frame.len() < 8 << 10);
        let len = 512 << 10;
        let found = plain(frame, ChunkName::of(&vec![0; len]), len, None);
        assert!(matches!(found, Err(Damage::Frame(_))), "{found:?}");
    }

    #[test]
    fn what_gets_no_shorter_is_not_compressed() {
        let noise: Vec<u8> = (0..64_u8).flat_map(|part| *ChunkName::of(&[part]).bytes()).collect();
        assert_eq!(compressed(&noise), None);
        assert_eq!((compressed(b"x"), compressed(b"")), (None, None));
    }
}
