//! The guest data of an image that is not opened as a disk.

use std::sync::Arc;

use block::BlockFuture;
use luks::Secret;
use qcow2_layout::CryptMethod;
use storage::Storage;

use super::read_header;
use crate::encryption::guest_data;
use crate::{Error, Host};

/// What decrypts the guest data in the file of an encrypted image, for tools that move it; `None` of one that is not encrypted.
///
/// # Errors
/// When the header is not one, the image is encrypted and `password` is not there or opens nothing, or is there and the image is not.
pub fn plain_text<'a>(
    file: &'a Arc<dyn Storage>,
    password: Option<&'a Secret>,
    host: &'a Arc<dyn Host>,
) -> BlockFuture<'a, Result<Option<Arc<dyn Storage>>, Error>> {
    Box::pin(async move {
        let header = read_header(&**file).await?;
        let data = guest_data(file, None, &header, password, true, host).await?;
        Ok((header.crypt != CryptMethod::None).then_some(data.storage))
    })
}
