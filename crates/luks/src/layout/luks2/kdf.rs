//! From a password to the key of a key slot: PBKDF2, or Argon2, which takes memory.

use super::member::Member;
use crate::layout::primitives::{self, Argon2Cost};
use crate::layout::{Hash, LuksError, Secret};

/// Memory that trying a password may take, in KiB: what cryptsetup asks for at most by default. More is refused before
/// it is asked for.
pub const ARGON2_MEMORY_KIB_MAX: u32 = 1 << 20;
/// Passes over memory, in KiB, of all key slots together: each of the 32 slots may have four over a GiB, which is cryptsetup's own
/// choice. A wrong password costs them all: two minutes or three.
pub const ARGON2_PASSES_KIB_MAX: u64 = 128 << 20;
/// Lanes at most: cryptsetup's limit.
const LANES_MAX: u64 = 4;
/// Bytes of a salt: argon2 takes 8 at least, cryptsetup makes 32.
const SALT_BYTES: (usize, usize) = (8, 64);

/// Where Argon2 looks while it fills memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argon2Kind {
    /// `argon2i`: at places that do not depend on the password.
    I,
    /// `argon2id`: at first likewise.
    Id,
}

/// How a password becomes a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kdf {
    /// RFC 8018.
    Pbkdf2 {
        /// With this hash.
        hash: Hash,
        /// So often.
        iterations: u32,
        /// And this salt.
        salt: Vec<u8>,
    },
    /// RFC 9106, version 1.3.
    Argon2 {
        /// Which of them.
        kind: Argon2Kind,
        /// Passes over the memory.
        passes: u32,
        /// Memory in KiB.
        memory_kib: u32,
        /// Parts that can be filled side by side.
        lanes: u32,
        /// Its salt.
        salt: Vec<u8>,
    },
}

impl Kdf {
    pub(super) fn decode(kdf: &Member<'_>) -> Result<Self, LuksError> {
        let kind = kdf.get("type");
        let kind = match kind.text()? {
            "pbkdf2" => {
                let hash = Hash::of_name(kdf.get("hash").text()?)?;
                let iterations = kdf.get("iterations").number(1, u32::MAX.into())? as u32;
                return Ok(Self::Pbkdf2 { hash, iterations, salt: salt(kdf)? });
            }
            "argon2i" => Argon2Kind::I,
            "argon2id" => Argon2Kind::Id,
            _ => return Err(kind.not_supported("supported: pbkdf2, argon2i, argon2id")),
        };
        let lanes = kdf.get("cpus").number(1, LANES_MAX)? as u32;
        // Eight blocks of a KiB for each lane (RFC 9106, 3.1).
        let memory = kdf.get("memory");
        let memory_kib = memory.number(8 * u64::from(lanes), u32::MAX.into())? as u32;
        if memory_kib > ARGON2_MEMORY_KIB_MAX {
            let instead = format!(
                "at most {ARGON2_MEMORY_KIB_MAX} KiB of memory are: \
                 cryptsetup luksConvertKey --pbkdf-memory {ARGON2_MEMORY_KIB_MAX} makes the key slot anew"
            );
            return Err(memory.not_supported(&instead));
        }
        let passes = kdf.get("time").number(1, u32::MAX.into())? as u32;
        Ok(Self::Argon2 { kind, passes, memory_kib, lanes, salt: salt(kdf)? })
    }

    /// What `len` bytes cost by PBKDF2.
    pub(super) fn pbkdf2_cost(&self, len: usize) -> u64 {
        match self {
            Self::Pbkdf2 { hash, iterations, .. } => hash.pbkdf2_cost(*iterations, len),
            Self::Argon2 { .. } => 0,
        }
    }

    /// Iterations of PBKDF2.
    pub(super) fn iterations(&self) -> u64 {
        match self {
            Self::Pbkdf2 { iterations, .. } => u64::from(*iterations),
            Self::Argon2 { .. } => 0,
        }
    }

    /// KiB that Argon2 passes over.
    pub(super) fn passes_kib(&self) -> u64 {
        match self {
            Self::Pbkdf2 { .. } => 0,
            Self::Argon2 { passes, memory_kib, .. } => u64::from(*passes) * u64::from(*memory_kib),
        }
    }

    /// `len` bytes made of `password`. Costs the iterations, or the passes over the memory, on this thread.
    pub(super) fn derive(&self, password: &Secret, len: usize) -> Result<Secret, LuksError> {
        match self {
            Self::Pbkdf2 { hash, iterations, salt } => hash.pbkdf2(password.bytes(), salt, *iterations, len),
            Self::Argon2 { kind, passes, memory_kib, lanes, salt } => {
                let cost =
                    Argon2Cost { kind: *kind, passes: *passes, memory_kib: *memory_kib, lanes: *lanes };
                primitives::argon2(cost, password, salt, len)
            }
        }
    }
}

fn salt(kdf: &Member<'_>) -> Result<Vec<u8>, LuksError> {
    kdf.get("salt").bytes(SALT_BYTES.0, SALT_BYTES.1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn keys_are_those_of_the_reference_program() {
        // Test vectors of the reference implementation (phc-winner-argon2, test.c, version 0x13): password, somesalt.
        let table = [
            (Argon2Kind::Id, 2, 256, 1, "9dfeb910e80bad0311fee20f9c0e2b12c17987b4cac90c2ef54d5b3021c68bfe"),
            (Argon2Kind::I, 2, 256, 1, "89e9029f4637b295beb027056a7336c414fadd43f6b208645281cb214a56452f"),
            (Argon2Kind::Id, 2, 256, 2, "6d093c501fd5999645e0ea3bf620d7b8be7fd2db59c20d9fff9539da2bf57037"),
            (Argon2Kind::I, 2, 256, 2, "4ff5ce2769a1d7f4c8a491df09d41a9fbe90e5eb02155a13e4c01e20cd4eab61"),
        ];
        for (kind, passes, memory_kib, lanes, key) in table {
            let kdf = Kdf::Argon2 { kind, passes, memory_kib, lanes, salt: b"somesalt".to_vec() };
            let derived = kdf.derive(&Secret::new(b"password".to_vec()), 32).unwrap();
            assert_eq!(hex(derived.bytes()), key, "{kdf:?}");
        }
    }

    #[test]
    fn memory_beyond_the_limit_is_refused_before_it_is_asked_for() {
        let salt = "c29tZXNhbHQ=";
        for memory in [u64::from(ARGON2_MEMORY_KIB_MAX) + 1, u64::from(u32::MAX), 1 << 32, 7] {
            let value = json!({"type": "argon2id", "time": 1, "memory": memory, "cpus": 1, "salt": salt});
            let refused = Kdf::decode(&Member::root(&value)).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("memory of the LUKS2 header is {memory}")), "{refused}");
        }
    }
}
