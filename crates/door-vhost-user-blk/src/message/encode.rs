//! Messages of a front-end as bytes: another process decodes them.

use super::{Message, RegionInfo, RingAddress, RingFd, RingState, inflight_answer, number, ring_state};

impl Message {
    /// The bytes that [`Message::decode`] makes this of: the request's number, and its payload. Only for messages that set something up.
    pub fn encode(&self) -> Option<(u32, Vec<u8>)> {
        let fd = |fd: &RingFd| number(u64::from(fd.ring) | if fd.polled { 0x100 } else { 0 }).to_vec();
        let state = |state: &RingState| ring_state(state.ring, state.value).to_vec();
        Some(match self {
            Self::SetFeatures(features) => (2, number(*features).to_vec()),
            Self::SetLogBase(area) => (6, words([area.len, area.file_offset])),
            Self::SetRingEntries(ring) => (8, state(ring)),
            Self::SetRingAddress(address) => (9, encoded_address(address)),
            Self::SetRingBase(ring) => (10, state(ring)),
            Self::SetRingKick(ring) => (12, fd(ring)),
            Self::SetRingCall(ring) => (13, fd(ring)),
            Self::SetRingErr(ring) => (14, fd(ring)),
            Self::SetProtocolFeatures(features) => (16, number(*features).to_vec()),
            Self::SetRingEnable(ring) => (18, state(ring)),
            Self::SetBackendChannel => (21, Vec::new()),
            Self::SetInflight(info) => (32, inflight_answer(*info, 24)),
            Self::AddRegion(RegionInfo { guest, len, user, file_offset }) => {
                (37, words([0, *guest, *len, *user, *file_offset]))
            }
            _ => return None,
        })
    }
}

fn words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.map(u64::to_ne_bytes).concat()
}

fn encoded_address(address: &RingAddress) -> Vec<u8> {
    let RingAddress { ring, logged, descriptors, used, available, log_guest } = *address;
    let head = ring_state(ring, u32::from(logged)).to_vec();
    [head, words([descriptors, used, available, log_guest])].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Area, InflightInfo};

    #[test]
    fn what_is_encoded_is_decoded_to_the_same() {
        let area = Area { len: 4096, file_offset: 8192 };
        let state = RingState { ring: 3, value: 0x8001_8002 };
        let fd = RingFd { ring: 5, polled: false };
        let address =
            RingAddress { ring: 2, logged: true, descriptors: 1, used: 2, available: 3, log_guest: 4 };
        for message in [
            Message::SetFeatures(1 << 34 | 7),
            Message::SetProtocolFeatures(9),
            Message::SetLogBase(area),
            Message::SetRingEntries(state),
            Message::SetRingAddress(address),
            Message::SetRingBase(state),
            Message::SetRingKick(fd),
            Message::SetRingCall(RingFd { polled: true, ..fd }),
            Message::SetRingErr(fd),
            Message::SetRingEnable(state),
            Message::SetBackendChannel,
            Message::SetInflight(InflightInfo { area, queues: 2, entries: 256 }),
            Message::AddRegion(RegionInfo { guest: 1, len: 2, user: 3, file_offset: 4 }),
        ] {
            let (request, payload) = message.encode().expect("a message that sets something up");
            assert_eq!(Message::decode(request, &payload), Ok(message));
        }
        assert_eq!(Message::GetFeatures.encode(), None);
    }
}
