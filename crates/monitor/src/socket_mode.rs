//! `--socket-mode`: who may connect to a Unix socket.

use std::str::FromStr;

use rustix::fs::Mode;

/// The rights of a socket's name. To connect takes the right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(Mode);

/// Its owner alone.
impl Default for SocketMode {
    fn default() -> Self {
        Self(Mode::RUSR | Mode::WUSR)
    }
}

impl SocketMode {
    /// As the system wants it.
    pub fn mode(self) -> Mode {
        self.0
    }
}

/// An octal number, as chmod and systemd's SocketMode= take it.
impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_octal = !text.is_empty() && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        let bits = u32::from_str_radix(text, 8).ok().filter(|&bits| is_octal && bits <= 0o777);
        let bits = bits.ok_or_else(|| format!("{text:?} is no mode; write it in octal, 0600 to 0777"))?;
        if bits & 0o600 != 0o600 {
            return Err(format!("{text} keeps out the owner; the least is 0600"));
        }
        Ok(Self(Mode::from_raw_mode(bits)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_octal_and_lets_the_owner_in() {
        for (text, bits) in [("0600", 0o600), ("660", 0o660), ("0777", 0o777)] {
            assert_eq!(text.parse::<SocketMode>().unwrap().mode().as_raw_mode(), bits);
        }
        for text in ["", "0", "0060", "888", "u+rw", "+660", "01777", "77777777777"] {
            assert!(text.parse::<SocketMode>().is_err(), "{text}");
        }
    }
}
