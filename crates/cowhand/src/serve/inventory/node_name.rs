//! What a node may be called.

use control::QmpError;

/// Bytes of a node's name at most, as in QEMU.
const NAME_BYTES_MAX: usize = 31;

/// A name that a user may give to a node: QEMU's rule.
pub fn check_node_name(name: &str) -> Result<(), QmpError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if begins && name.len() <= NAME_BYTES_MAX && name.chars().all(plain) {
        return Ok(());
    }
    Err(QmpError::generic(format!(
        "{name:?} is no node name: a letter, then letters, digits, '-', '.', '_', at most {NAME_BYTES_MAX} in all"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_name_begins_with_a_letter_and_is_short() {
        for name in ["a", "disk-0.x_y", &"a".repeat(31)] {
            assert!(check_node_name(name).is_ok(), "{name}");
        }
        for name in ["", "0a", "#block000", "a b", "ä", &"a".repeat(32)] {
            assert!(check_node_name(name).is_err(), "{name}");
        }
    }
}
