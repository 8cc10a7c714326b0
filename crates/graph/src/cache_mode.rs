//! What a completed write and a flush mean: QEMU's cache modes (FACTS 4).

use std::fmt;

/// A cache mode, by what it does. The five names are the useful combinations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheMode {
    /// Bypass the host's page cache (O_DIRECT).
    pub direct: bool,
    /// Flushes do not reach the device; acknowledged writes may be lost when the machine crashes.
    pub no_flush: bool,
    /// Every write is durable before it is acknowledged.
    pub writethrough: bool,
}

impl CacheMode {
    /// The modes by name, in QEMU's spelling. `off` is an old name of `none`.
    pub const NAMED: [(&'static str, Self); 6] = [
        ("writeback", Self { direct: false, no_flush: false, writethrough: false }),
        ("writethrough", Self { direct: false, no_flush: false, writethrough: true }),
        ("none", Self { direct: true, no_flush: false, writethrough: false }),
        ("off", Self { direct: true, no_flush: false, writethrough: false }),
        ("directsync", Self { direct: true, no_flush: false, writethrough: true }),
        ("unsafe", Self { direct: false, no_flush: true, writethrough: false }),
    ];

    /// The mode of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, mode)| *mode)
    }
}

impl fmt::Display for CacheMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMED.iter().find(|(_, mode)| mode == self) {
            Some((name, _)) => f.write_str(name),
            None => write!(
                f,
                "direct={},no-flush={},writethrough={}",
                self.direct, self.no_flush, self.writethrough
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_means_what_the_table_of_modes_says() {
        let table = [
            ("writeback", false, false, false),
            ("writethrough", false, true, false),
            ("none", true, false, false),
            ("off", true, false, false),
            ("directsync", true, true, false),
            ("unsafe", false, false, true),
        ];
        for (name, direct, writethrough, no_flush) in table {
            assert_eq!(
                CacheMode::of_name(name),
                Some(CacheMode { direct, no_flush, writethrough }),
                "{name}"
            );
        }
        assert_eq!(CacheMode::of_name("None"), None);
    }

    #[test]
    fn a_mode_is_shown_by_the_name_it_is_chosen_by() {
        for (name, mode) in CacheMode::NAMED {
            let shown = if name == "off" { "none" } else { name };
            assert_eq!(mode.to_string(), shown);
        }
    }
}
