//! Generic netlink: as much of it as the kernel's NBD client needs (`linux/netlink.h`, `linux/genetlink.h`).

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};

/// Bytes of the header of a message, and of that of a family's message behind it.
const HEADER_BYTES: usize = 16;
const FAMILY_HEADER_BYTES: usize = 4;
/// Messages are short: an answer names a family or a device.
const ANSWER_BYTES_MAX: usize = 16 << 10;

const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const ERROR: u16 = 2;
/// The family that knows the others.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const NESTED: u16 = 1 << 15;

/// A connection to one family of the kernel.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
}

impl Netlink {
    /// To the family called `name`; `None` where the kernel has none.
    ///
    /// # Errors
    /// When there is no netlink.
    pub fn to(name: &str) -> io::Result<Option<Self>> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::GENERIC),
        )?;
        let mut netlink = Self { socket, family: CONTROLLER, sequence: 0 };
        let name = [name.as_bytes(), b"\0"].concat();
        let answer = match netlink.ask(GET_FAMILY, &Attributes::default().with(FAMILY_NAME, &name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let id = attribute(&answer, FAMILY_ID).and_then(|id| id.first_chunk::<2>());
        netlink.family = u16::from_ne_bytes(*id.ok_or(io::ErrorKind::InvalidData)?);
        Ok(Some(netlink))
    }

    /// One command: the attributes of its answer, none where it has only to succeed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn ask(&mut self, command: u8, attributes: &Attributes) -> io::Result<Vec<u8>> {
        self.sequence += 1;
        let message = message(self.family, self.sequence, command, attributes);
        retry_on_intr(|| rustix::io::write(&self.socket, &message))?;
        let mut answer = Vec::new();
        loop {
            let mut buf = vec![0; ANSWER_BYTES_MAX];
            let len = retry_on_intr(|| rustix::io::read(&self.socket, &mut buf))?;
            for (kind, sequence, body) in Messages(buf.get(..len).unwrap_or_default()) {
                match kind {
                    _ if sequence != self.sequence => {}
                    ERROR => return acknowledged(body).map(|()| answer),
                    _ => answer = body.get(FAMILY_HEADER_BYTES..).unwrap_or_default().to_vec(),
                }
            }
        }
    }
}

/// Attributes of a message.
#[derive(Clone, Debug, Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// One more.
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let len = (4 + value.len()) as u16;
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// One more, which has others.
    #[must_use]
    pub fn with_nested(self, kind: u16, value: &Self) -> Self {
        self.with(kind | NESTED, &value.0)
    }
}

fn message(family: u16, sequence: u32, command: u8, attributes: &Attributes) -> Vec<u8> {
    let len = (HEADER_BYTES + FAMILY_HEADER_BYTES + attributes.0.len()) as u32;
    let mut bytes = Vec::with_capacity(len as usize);
    bytes.extend(len.to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend((REQUEST | ACKNOWLEDGE).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    // The kernel's port, which is also that of a socket without a name.
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend([command, 1, 0, 0]);
    bytes.extend(&attributes.0);
    bytes
}

/// The messages of a datagram: kind, sequence, body. It ends at one that is cut off.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = (u16, u32, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header = self.0.first_chunk::<HEADER_BYTES>()?;
        let [l0, l1, l2, l3, k0, k1, _, _, s0, s1, s2, s3, ..] = *header;
        let len = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let body = self.0.get(HEADER_BYTES..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k0, k1]), u32::from_ne_bytes([s0, s1, s2, s3]), body))
    }
}

/// What an acknowledgement says: 0, or an error's number below 0.
fn acknowledged(body: &[u8]) -> io::Result<()> {
    let code = body.first_chunk::<4>().ok_or(io::ErrorKind::InvalidData)?;
    match i32::from_ne_bytes(*code) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
    }
}

/// The value of the first attribute of this kind.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let [l0, l1, k0, k1] = *bytes.first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(4..len)?;
        if u16::from_ne_bytes([k0, k1]) & !NESTED == wanted {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn a_message_has_the_layout_of_the_kernels_headers() {
        let inner = Attributes::default().with(1, &7_u32.to_ne_bytes());
        let attributes = Attributes::default().with(2, b"nbd\0").with_nested(7, &inner);
        let bytes = message(0x1c, 3, 1, &attributes);
        let expected = [
            &[40, 0, 0, 0, 0x1c, 0, 5, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0][..],
            &[8, 0, 2, 0, b'n', b'b', b'd', 0],
            &[12, 0, 7, 0x80, 8, 0, 1, 0, 7, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn answers_are_taken_apart_whatever_is_in_them() {
        let attributes = Attributes::default().with(5, b"a").with(FAMILY_ID, &9_u16.to_ne_bytes());
        let both = [message(CONTROLLER, 1, 1, &attributes), message(ERROR, 2, 0, &attributes)].concat();
        let found: Vec<_> = Messages(&both).map(|(kind, sequence, _)| (kind, sequence)).collect();
        assert_eq!(found, [(CONTROLLER, 1), (ERROR, 2)]);
        assert_eq!(attribute(&attributes.0, FAMILY_ID), Some(&9_u16.to_ne_bytes()[..]));
        for len in 0..both.len() {
            let cut = &both[..len];
            assert!(Messages(cut).count() <= 1, "{len}");
            let _ = attribute(cut, FAMILY_ID);
        }
        // Lengths of 0 must not be taken for ever.
        assert_eq!(Messages(&[0; 64]).count(), 0);
        assert_eq!(attribute(&[0; 64], 1), None);
    }

    #[test]
    fn the_kernel_names_its_families_and_says_which_it_has_not() {
        assert!(Netlink::to("nlctrl").unwrap().is_some_and(|controller| controller.family == CONTROLLER));
        assert!(Netlink::to("no-such").unwrap().is_none());
    }
}
