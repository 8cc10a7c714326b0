//! Priority strings: which versions and ciphers are used, in the notation of GnuTLS, as far as the library has them.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, SupportedProtocolVersion};

/// Versions and ciphers. All that the library has unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    tls12: bool,
    tls13: bool,
    aes_128: bool,
    aes_256: bool,
    chacha20: bool,
}

/// A string that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriorityError {
    /// A part of it means something that the library cannot do.
    #[error(
        "priority has {part:?}; allowed: NORMAL, SECURE128, SECURE192, SECURE256, PFS, PERFORMANCE or @NAME, then + or - of \
        VERS-ALL, VERS-TLS1.2, VERS-TLS1.3, CIPHER-ALL, AES-128-GCM, AES-256-GCM, CHACHA20-POLY1305"
    )]
    Part {
        /// Which.
        part: String,
    },
    /// Nothing is left.
    #[error("priority {text:?} leaves no version or no cipher")]
    Nothing {
        /// The whole of it.
        text: String,
    },
}

/// First words: all of them are at most what the library has.
const FIRST: [&str; 6] = ["NORMAL", "SECURE128", "SECURE192", "SECURE256", "PFS", "PERFORMANCE"];

/// What the library never uses: it may be taken away.
const NEVER_USED: [&str; 21] = [
    "VERS-SSL3.0",
    "VERS-TLS1.0",
    "VERS-TLS1.1",
    "VERS-DTLS-ALL",
    "VERS-DTLS1.0",
    "VERS-DTLS1.2",
    "ARCFOUR-128",
    "3DES-CBC",
    "AES-128-CBC",
    "AES-256-CBC",
    "AES-128-CCM",
    "AES-256-CCM",
    "CAMELLIA-128-CBC",
    "CAMELLIA-256-CBC",
    "MD5",
    "SHA1",
    "RSA",
    "DHE-RSA",
    "DHE-DSS",
    "ANON-DH",
    "ANON-ECDH",
];

impl Default for Priority {
    fn default() -> Self {
        Self { tls12: true, tls13: true, aes_128: true, aes_256: true, chacha20: true }
    }
}

impl Priority {
    /// Reads a string.
    ///
    /// # Errors
    /// When a part asks for what the library has not, or takes away what it cannot be without, or nothing is left.
    pub fn parse(text: &str) -> Result<Self, PriorityError> {
        let mut parts = text.split(':');
        let first = parts.next().unwrap_or_default();
        let wrong = |part: &str| PriorityError::Part { part: part.to_owned() };
        if !FIRST.contains(&first) && !first.starts_with('@') {
            return Err(wrong(first));
        }
        let strong = matches!(first, "SECURE192" | "SECURE256");
        let mut found = Self { aes_128: !strong, ..Self::default() };
        for part in parts.filter(|part| !part.is_empty()) {
            let (sign, name) = part.split_at_checked(1).ok_or_else(|| wrong(part))?;
            let is_on = match sign {
                "+" => true,
                "-" | "!" => false,
                _ => return Err(wrong(part)),
            };
            let known = found.set(name, is_on);
            if !known && (is_on || !NEVER_USED.contains(&name)) {
                return Err(wrong(part));
            }
        }
        let Self { tls12, tls13, aes_128, aes_256, chacha20 } = found;
        match (tls12 || tls13) && (aes_128 || aes_256 || chacha20) {
            true => Ok(found),
            false => Err(PriorityError::Nothing { text: text.to_owned() }),
        }
    }

    /// `false` if that is no name of what can be switched.
    fn set(&mut self, name: &str, is_on: bool) -> bool {
        let Self { tls12, tls13, aes_128, aes_256, chacha20 } = self;
        let all: &mut [&mut bool] = match name {
            "VERS-ALL" | "VERS-TLS-ALL" => &mut [tls12, tls13],
            "VERS-TLS1.2" => &mut [tls12],
            "VERS-TLS1.3" => &mut [tls13],
            "CIPHER-ALL" => &mut [aes_128, aes_256, chacha20],
            "AES-128-GCM" => &mut [aes_128],
            "AES-256-GCM" => &mut [aes_256],
            "CHACHA20-POLY1305" => &mut [chacha20],
            _ => return false,
        };
        all.iter_mut().for_each(|switch| **switch = is_on);
        true
    }

    /// The versions.
    pub(crate) fn versions(self) -> Vec<&'static SupportedProtocolVersion> {
        let [old, new] =
            [(self.tls12, &TLS12), (self.tls13, &TLS13)].map(|(is_on, version)| is_on.then_some(version));
        old.into_iter().chain(new).collect()
    }

    /// The library's cryptography, with these ciphers.
    pub(crate) fn provider(self) -> Arc<CryptoProvider> {
        let mut provider = rustls::crypto::ring::default_provider();
        provider.cipher_suites.retain(|suite| match suite.suite() {
            CipherSuite::TLS13_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => self.aes_128,
            CipherSuite::TLS13_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => self.aes_256,
            _ => self.chacha20,
        });
        Arc::new(provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_ciphers_are_those_of_the_string() {
        let all = Priority::default();
        for (text, expected) in [
            ("NORMAL", all),
            ("@QEMU,SYSTEM", all),
            ("NORMAL:-VERS-TLS1.0:-VERS-TLS1.1:-ARCFOUR-128", all),
            ("NORMAL:-VERS-ALL:+VERS-TLS1.3", Priority { tls12: false, ..all }),
            ("NORMAL:!VERS-TLS1.3", Priority { tls13: false, ..all }),
            ("SECURE256", Priority { aes_128: false, ..all }),
            ("NORMAL:-CIPHER-ALL:+AES-256-GCM", Priority { aes_128: false, chacha20: false, ..all }),
        ] {
            assert_eq!(Priority::parse(text), Ok(expected), "{text}");
        }
        let strong = Priority::parse("SECURE256:-CHACHA20-POLY1305:-VERS-TLS1.2").unwrap();
        assert_eq!((strong.versions().len(), strong.provider().cipher_suites.len()), (1, 3));
    }

    #[test]
    fn what_the_library_cannot_do_is_refused_by_name() {
        for (text, part) in [
            ("", ""),
            ("SUITEB128", "SUITEB128"),
            ("NORMAL:+ANON-DH", "+ANON-DH"),
            ("NORMAL:-GROUP-X25519", "-GROUP-X25519"),
            ("NORMAL:%COMPAT", "%COMPAT"),
        ] {
            assert_eq!(Priority::parse(text), Err(PriorityError::Part { part: part.to_owned() }), "{text}");
        }
        for text in ["NORMAL:-VERS-ALL", "NORMAL:-CIPHER-ALL"] {
            assert!(matches!(Priority::parse(text), Err(PriorityError::Nothing { .. })), "{text}");
        }
    }
}
