//! A new header, with one key slot.

use std::io;
use std::time::{Duration, Instant};

use block::{Blame, Error};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use storage::{Allocation, Hints, IoBytes, Storage, Zeroing};

use crate::around::{Around, calculated};
use crate::header::refused;
use crate::layout::{Cipher, Hash, Header, LuksError, NewHeader, NewSlot, SECTOR_BYTES, Secret, calibrate};

/// How long a password takes to be tried, unless said otherwise: as QEMU has it.
pub const ITER_TIME_DEFAULT: Duration = Duration::from_millis(2000);

/// Trying a password is its key slot and the digest of the key: nine parts of its time, of which the digest has one, as QEMU shares it.
const PARTS: u32 = 9;

/// What a new volume is to be.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// How sectors are ciphered.
    pub cipher: Cipher,
    /// How keys are made.
    pub hash: Hash,
    /// How long a password shall take to be tried on this machine.
    pub iter_time: Duration,
    /// What opens it.
    pub password: Secret,
    /// The header has a file of its own: the disk's data begins at the first byte of another one.
    pub is_detached: bool,
}

/// A header and the key material of slot 0, to be written.
#[derive(Debug)]
struct Made {
    header: Header,
    material: Secret,
}

impl NewVolume {
    /// Writes a header with one key at `offset` of `file`: key material and the end of the header, then, behind a flush, its first sector. There must be
    /// [`crate::area_bytes`] of room. Costs a little more than `iter_time`.
    ///
    /// # After a crash
    /// Without its header an area is no LUKS header.
    pub async fn write(&self, file: &dyn Storage, offset: u64, around: &dyn Around) -> Result<Header, Error> {
        let blame = Blame::new(file.name());
        let new = self.clone();
        let Made { header, material } = calculated(around, move || new.make())
            .await
            .map_err(blame.io("making a key"))?
            .map_err(|error| error.named(&blame))?;
        let place = offset + u64::from(header.slots[0].material_sector) * SECTOR_BYTES;
        let bytes = IoBytes::copy_from(material.bytes());
        file.write(place, bytes.into(), Hints::NONE).await.map_err(blame.io("writing a key slot"))?;
        // The header lies in two sectors, and only the first one says that there is a header.
        let encoded = header.encode();
        let (first, second) = encoded.split_at(SECTOR_BYTES as usize);
        let rest = IoBytes::copy_from(second);
        let written = file.write(offset + SECTOR_BYTES, rest.into(), Hints::NONE).await;
        written.map_err(blame.io("writing the LUKS header"))?;
        file.flush().await.map_err(blame.io("flushing a key slot"))?;
        let bytes = IoBytes::copy_from(first);
        file.write(offset, bytes.into(), Hints::NONE).await.map_err(blame.io("writing the LUKS header"))?;
        file.flush().await.map_err(blame.io("flushing the LUKS header"))?;
        Ok(header)
    }

    /// Makes a LUKS file of `file`, whatever it holds: header, key material, and `disk_bytes` behind them, of which none was written:
    /// they read as noise. `allocation` says whether space is reserved for them. `disk_bytes` is whole sectors. A file for a detached header ends
    /// with the key material.
    ///
    /// # After a crash
    /// There is what was there before, no LUKS header, or all of it.
    pub async fn write_file(
        &self,
        file: &dyn Storage,
        disk_bytes: u64,
        allocation: Option<Allocation>,
        around: &dyn Around,
    ) -> Result<Header, Error> {
        let blame = Blame::new(file.name());
        let disk_bytes = if self.is_detached { 0 } else { disk_bytes };
        let start = crate::layout::area_bytes(self.cipher);
        let length = start.checked_add(disk_bytes).filter(|&length| i64::try_from(length).is_ok());
        let length = length.ok_or_else(|| {
            blame.invalid(format!(
                "the disk has {disk_bytes} bytes; allowed: at most {}",
                i64::MAX as u64 - start
            ))
        })?;
        // An old header must be gone before anything is written that does not belong to it.
        if file.capabilities().resizable {
            file.shorten_to(0).await.map_err(blame.io("emptying the file"))?;
        } else {
            let old = file.length().min(start);
            file.zero(0, old, Zeroing::Keep).await.map_err(blame.io("emptying the device"))?;
        }
        file.flush().await.map_err(blame.io("emptying the file"))?;
        file.grow_to(length).await.map_err(blame.io("making the file longer"))?;
        if let Some(how) = allocation.filter(|_| disk_bytes > 0) {
            file.allocate(start, disk_bytes, how).await.map_err(blame.io("reserving space"))?;
        }
        self.write(file, 0, around).await
    }

    fn make(&self) -> Result<Made, NotMade> {
        let key = random_secret(self.cipher.key_bytes())?;
        let len = crate::layout::DIGEST_BYTES;
        let new = NewHeader {
            cipher: self.cipher,
            hash: self.hash,
            key: &key,
            digest_salt: random()?,
            digest_iterations: iterations(self.hash, len, self.iter_time / PARTS),
            uuid: random()?,
        };
        let mut header = Header::new(&new)?;
        if self.is_detached {
            header.payload_sector = 0;
        }
        let material = fill_slot(&mut header, 0, &key, &self.password, self.iter_time)?;
        Ok(Made { header, material })
    }
}

/// Puts `key` into slot `slot`, for `password`; what must be written of it.
pub(crate) fn fill_slot(
    header: &mut Header,
    slot: usize,
    key: &Secret,
    password: &Secret,
    iter_time: Duration,
) -> Result<Secret, NotMade> {
    let iterations = iterations(header.hash, header.cipher.key_bytes(), iter_time / PARTS * (PARTS - 1));
    let new = NewSlot { password, iterations, salt: random()? };
    let material = random_secret(header.material_bytes(&header.slots[slot]))?;
    Ok(header.fill_slot(slot, key, &new, material)?)
}

/// Why there is no new key.
pub(crate) enum NotMade {
    Layout(LuksError),
    Random(io::Error),
}

impl From<LuksError> for NotMade {
    fn from(error: LuksError) -> Self {
        Self::Layout(error)
    }
}

impl From<io::Error> for NotMade {
    fn from(error: io::Error) -> Self {
        Self::Random(error)
    }
}

impl NotMade {
    pub(crate) fn named(self, blame: &Blame) -> Error {
        match self {
            Self::Layout(error) => refused(blame, &error),
            Self::Random(error) => blame.io("making a key")(error),
        }
    }
}

fn iterations(hash: Hash, key_bytes: usize, time: Duration) -> u32 {
    let start = Instant::now();
    calibrate(hash, key_bytes, time, &mut || start.elapsed())
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn random_secret(len: usize) -> io::Result<Secret> {
    let mut secret = Secret::zeroed(len);
    fill_random(secret.bytes_mut())?;
    Ok(secret)
}

/// Random bytes of the kernel, which gives up to 256 at once and may be interrupted beyond.
fn fill_random(mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match getrandom(&mut *bytes, GetRandomFlags::empty()) {
            Ok(got) => bytes = &mut bytes[got..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
