//! Images whose data is ciphered: LUKS in the header, sectors numbered by their place in the file.
//!
//! Guest data goes through storage that ciphers ([`CipherStorage`]) in the place of the file it is in; metadata and compressed
//! clusters are not ciphered and go to the file itself.

use std::sync::Arc;

use block::Blame;
use qcow2_layout::{CryptMethod, Header};
use storage::Storage;
use storage_luks::{Area, Around, CipherStorage, Secret, unlock};

use crate::Error;
use crate::host::{Calculation, Host, Work};
use crate::open::{Files, read_header};

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

/// Where guest data is read and written in plain text: `files` themselves, or what deciphers them with the key that `password` opens.
pub(crate) async fn plain_data(
    files: &Files,
    header: &Header,
    password: Option<&Secret>,
    host: &Arc<dyn Host>,
    blame: &Blame,
) -> Result<Arc<dyn Storage>, Error> {
    let data = Arc::clone(files.data.as_ref().unwrap_or(&files.file));
    match (header.crypt, luks_area(header), password) {
        (CryptMethod::Luks, Some(area), Some(password)) => {
            let around: Arc<dyn Around> = Arc::new(AroundHost(Arc::clone(host)));
            let unlocked = unlock(&*files.file, area, password, &*around).await?;
            Ok(Arc::new(CipherStorage::new(data, 0, unlocked.cipher(blame)?, around)))
        }
        (CryptMethod::Luks, ..) => Err(blame
            .invalid("the image is encrypted (LUKS); its password is needed: give encrypt.key-secret=ID")),
        (CryptMethod::Aes, ..) => {
            Err(blame.unsupported("the image is encrypted (AES, as before LUKS); cowhand cannot decrypt it"))
        }
        (CryptMethod::None, _, Some(_)) => {
            Err(blame.invalid("the image is not encrypted, and encrypt.key-secret was given"))
        }
        (CryptMethod::None, _, None) => Ok(data),
    }
}

/// What deciphers the guest data in the file of an encrypted image, for tools that move it; `None` of one that is not encrypted.
///
/// # Errors
/// When the header is not one, the image is encrypted and `password` is not there or opens nothing, or is there and the image is not.
pub async fn plain_text(
    file: &Arc<dyn Storage>,
    password: Option<&Secret>,
    host: &Arc<dyn Host>,
) -> Result<Option<Arc<dyn Storage>>, Error> {
    let header = read_header(&**file).await?;
    let files = Files { file: Arc::clone(file), data: None, backing: None };
    let plain = plain_data(&files, &header, password, host, &Blame::new(file.name())).await?;
    Ok((header.crypt != CryptMethod::None).then_some(plain))
}
