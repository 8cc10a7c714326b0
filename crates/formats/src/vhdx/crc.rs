//! CRC-32C (Castagnoli), by a table.

/// The polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = (byte as u32, 0);
        while bit < 8 {
            sum = (sum >> 1) ^ (POLYNOMIAL * (sum & 1));
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
};

/// A sum over bytes that come in parts.
#[derive(Clone, Copy, Debug)]
pub struct Crc(u32);

impl Crc {
    pub fn new() -> Self {
        Self(u32::MAX)
    }

    pub fn add(self, bytes: &[u8]) -> Self {
        let step = |sum: u32, byte: &u8| (sum >> 8) ^ TABLE[((sum ^ u32::from(*byte)) & 0xff) as usize];
        Self(bytes.iter().fold(self.0, step))
    }

    pub fn sum(self) -> u32 {
        !self.0
    }
}

/// The CRC-32C of `bytes`, in which the four at `at` count as zeroes: there the sum itself is kept, as a little-endian number.
pub fn sum_but(bytes: &[u8], at: usize) -> u32 {
    let (before, rest) = bytes.split_at(at.min(bytes.len()));
    let after = rest.get(4..).unwrap_or_default();
    Crc::new().add(before).add(&[0; 4]).add(after).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, B.4.
    #[test]
    fn sums_are_those_of_the_standard() {
        let ascending: Vec<u8> = (0..32).collect();
        for (bytes, sum) in [
            (&[0; 32][..], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (b"123456789", 0xe306_9283),
        ] {
            assert_eq!(Crc::new().add(bytes).sum(), sum);
        }
        assert_eq!(sum_but(&[0, 0, 1, 2, 3, 4, 0, 0], 2), Crc::new().add(&[0; 8]).sum());
    }
}
