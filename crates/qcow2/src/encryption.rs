//! Images whose data is ciphered. Metadata and compressed clusters are not.
//!
//! - **LUKS** in the header: sectors are numbered by their place in the file. Guest data goes through storage that ciphers
//!   ([`CipherStorage`]) in the place of the file it is in.
//! - **AES**, as it was before LUKS: sectors are numbered by their place in the disk, so what is read is decrypted where that is known
//!   ([`read_by_guest`]). Such images are only read, to be converted: a password of at most 16 bytes is the key, and nothing tells a wrong one.

use std::sync::Arc;

use block::{Blame, SECTOR_BYTES};
use luks::{Algorithm, Area, Around, Cipher, CipherStorage, Iv, Mode, Part, Secret, SectorCipher, unlock};
use qcow2_layout::{CryptMethod, Header, HostOffset};
use storage::{Hints, IoBuf, Storage};

use crate::Error;
use crate::host::{Calculation, Host, Work};

/// Where the LUKS header of an image is, if it has one.
pub fn luks_area(header: &Header) -> Option<Area> {
    header.extensions.crypto.map(|crypto| Area { offset: crypto.offset.0, len: crypto.len })
}

/// The engine's host, as ciphering sees it.
#[derive(Debug)]
struct AroundHost(Arc<dyn Host>);

impl Around for AroundHost {
    fn spawn(&self, work: Work) {
        self.0.spawn(work);
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        self.0.calculate(calculation)
    }
}

/// Where guest data is.
#[derive(Debug)]
pub(crate) struct GuestData {
    /// Where it is read and written: in plain text, unless `by_guest` decrypts it.
    pub(crate) storage: Arc<dyn Storage>,
    /// What that is, if it decrypts.
    pub(crate) plain: Option<Arc<CipherStorage>>,
    /// Decrypts what is read, sectors being numbered by their place in the disk.
    pub(crate) by_guest: Option<Arc<SectorCipher>>,
}

impl GuestData {
    fn deciphered(plain: CipherStorage) -> Self {
        let plain = Arc::new(plain);
        Self { storage: Arc::clone(&plain) as _, plain: Some(plain), by_guest: None }
    }

    fn plain(storage: Arc<dyn Storage>) -> Self {
        Self { storage, plain: None, by_guest: None }
    }
}

/// Where guest data is: in `file`, the image's, or its `data_file`, or in what decrypts them with the key that `password` opens. A disk that is to be
/// `writable` is refused if it can only be read.
pub(crate) async fn guest_data(
    file: &Arc<dyn Storage>,
    data_file: Option<&Arc<dyn Storage>>,
    header: &Header,
    password: Option<&Secret>,
    writable: bool,
    host: &Arc<dyn Host>,
) -> Result<GuestData, Error> {
    let blame = Blame::new(file.name());
    let data = Arc::clone(data_file.unwrap_or(file));
    match (header.crypt, luks_area(header), password) {
        (CryptMethod::Luks, Some(area), Some(password)) => {
            let around: Arc<dyn Around> = Arc::new(AroundHost(Arc::clone(host)));
            let unlocked = unlock(&**file, area, password, &*around).await?;
            let plain = CipherStorage::new(data, Part::default(), unlocked.cipher(&blame)?, around);
            Ok(GuestData::deciphered(plain))
        }
        (CryptMethod::Luks, ..) => Err(blame
            .invalid("the image is encrypted (LUKS); its password is needed: give encrypt.key-secret=ID")),
        (CryptMethod::Aes, ..) if writable => Err(blame.unsupported(
            "the image is encrypted (AES, as before LUKS) and can only be read: open it with read-only=on, or make \
             another image of it with `cowhand convert`",
        )),
        (CryptMethod::Aes, _, Some(password)) => {
            // A key that is made as long as the cipher wants it fails for want of ciphers alone.
            let cipher = before_luks(password).map_err(|error| blame.unsupported(error.to_string()))?;
            Ok(GuestData { storage: data, plain: None, by_guest: Some(Arc::new(cipher)) })
        }
        (CryptMethod::Aes, ..) => Err(blame.invalid(
            "the image is encrypted (AES, as before LUKS); its password is needed: give encrypt.key-secret=ID",
        )),
        (CryptMethod::None, _, Some(_)) => {
            Err(blame.invalid("the image is not encrypted, and encrypt.key-secret was given"))
        }
        (CryptMethod::None, _, None) => Ok(GuestData::plain(data)),
    }
}

/// The cipher of images from before LUKS: AES-128 in CBC mode, the first 16 bytes of the password being the key, or as many as there are and
/// zeroes (qcow2 specification, `crypt_method` 1).
fn before_luks(password: &Secret) -> Result<SectorCipher, luks::LuksError> {
    let cipher = Cipher { algorithm: Algorithm::Aes128, mode: Mode::Cbc, iv: Iv::Plain64 };
    let mut key = Secret::zeroed(cipher.key_bytes());
    let len = password.bytes().len().min(cipher.key_bytes());
    key.bytes_mut()[..len].copy_from_slice(&password.bytes()[..len]);
    SectorCipher::new(cipher, &key)
}

/// Fills `buf` with the plain text of the guest's bytes from `guest` on, which lie in `storage` from `host` on. Clusters are whole sectors,
/// so what a sector needs beside the bytes asked for lies in the same cluster.
pub(crate) async fn read_by_guest(
    storage: &dyn Storage,
    cipher: &SectorCipher,
    host: HostOffset,
    guest: u64,
    mut buf: IoBuf,
    hints: Hints,
) -> (std::io::Result<()>, IoBuf) {
    let sector = cipher.sector_bytes();
    let skip = guest % sector;
    let whole = (skip + buf.len() as u64).next_multiple_of(sector) as usize;
    if whole == buf.len() {
        let (result, mut buf) = storage.read(host.0, buf, hints).await;
        cipher.decipher(guest / SECTOR_BYTES, &mut buf);
        return (result, buf);
    }
    let sectors = match IoBuf::for_request(whole) {
        Ok(sectors) => sectors,
        Err(error) => return (Err(error), buf),
    };
    let (result, mut sectors) = storage.read(host.0 - skip, sectors, hints).await;
    cipher.decipher((guest - skip) / SECTOR_BYTES, &mut sectors);
    let len = buf.len();
    buf.copy_from_slice(&sectors[skip as usize..][..len]);
    (result, buf)
}
